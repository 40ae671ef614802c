package procfs

import (
	"fmt"
	"net"
	"testing"
)

func TestParseCount(t *testing.T) {
	for in, want := range map[string]int{"0\n": 1, "0-3\n": 4, "0-1,4,6-7\n": 5, "2147483647": 1} {
		if got, err := parseCount([]byte(in)); err != nil || got != want {
			t.Errorf("%q: got %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "x", "3-1", "0,", "0-", "-1", "0-2147483648", "0-2147483647,0-2147483647"} {
		if got, err := parseCount([]byte(in)); err == nil {
			t.Errorf("%q: got %d, want an error", in, got)
		}
	}
}

func FuzzParseCount(f *testing.F) {
	f.Add(uint8(0), uint8(3), []byte("0-3,8"))
	f.Fuzz(func(t *testing.T, from, more uint8, raw []byte) {
		if n, err := parseCount(raw); err == nil && n < 1 {
			t.Errorf("%q: got %d", raw, n)
		}
		in := fmt.Appendf(nil, "%d-%d,1000\n", from, int(from)+int(more))
		if n, err := parseCount(in); err != nil || n != int(more)+2 {
			t.Errorf("%q: got %d, %v", in, n, err)
		}
	})
}

func TestCountNodes(t *testing.T) {
	onlyLinux(t)
	if n, err := CountNodes(); err != nil || n < 1 {
		t.Errorf("got %d, %v; want at least 1", n, err)
	}
}

func TestCountQueues(t *testing.T) {
	onlyLinux(t)
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if receive, send, err := CountQueues("lo", lo.Index, lo.HardwareAddr.String()); err != nil || receive != 1 || send != 1 {
		t.Errorf("lo: got %d, %d, %v; want one of each", receive, send, err)
	}
	if receive, send, err := CountQueues("lo", lo.Index+1, ""); err == nil {
		t.Errorf("another number: got %d, %d, want an error", receive, send)
	}
	if receive, send, err := CountQueues("lo", lo.Index, "02:00:00:00:00:01"); err == nil {
		t.Errorf("another address: got %d, %d, want an error", receive, send)
	}
	if _, _, err := CountQueues("none", 1, ""); !Gone(err) {
		t.Errorf("no such interface: got %v, want an error that says so", err)
	}
}
