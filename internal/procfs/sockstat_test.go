package procfs

import (
	"fmt"
	"testing"
)

const sockstat = `sockets: used 200030
TCP: inuse 200008 orphan 1 tw 2 alloc 200009 mem 152
UDP: inuse 0 mem 0
`

func TestParseSocketCounts(t *testing.T) {
	want := SocketCounts{Open: 200008, Orphans: 1, TimeWait: 2, Allocated: 200009, Pages: 152}
	if got, err := parseSocketCounts([]byte(sockstat), nil); err != nil || got != want {
		t.Errorf("without IPv6: got %+v, %v; want %+v", got, err, want)
	}
	want.Open += 7
	if got, err := parseSocketCounts([]byte(sockstat), []byte("TCP6: inuse 7\nUDP6: inuse 3\n")); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	for name, in := range map[string][2]string{
		"empty":        {"", ""},
		"no line":      {"UDP: inuse 0 mem 0\n", ""},
		"a name less":  {"TCP: inuse 9 orphan 0 tw 0 alloc 9\n", ""},
		"no number":    {"TCP: inuse many orphan 0 tw 0 alloc 9 mem 1\n", ""},
		"negative":     {"TCP: inuse -1 orphan 0 tw 0 alloc 9 mem 1\n", ""},
		"IPv6 lacking": {sockstat, "UDP6: inuse 3\n"},
		"out of range": {sockstat, "TCP6: inuse 9223372036854775807\n"},
	} {
		if got, err := parseSocketCounts([]byte(in[0]), []byte(in[1])); err == nil {
			t.Errorf("%s: got %+v, want an error", name, got)
		}
	}
}

func FuzzParseSocketCounts(f *testing.F) {
	f.Add(uint32(9), uint32(152), []byte(sockstat), []byte("TCP6: inuse 7\n"))
	f.Fuzz(func(t *testing.T, open, mem uint32, four, six []byte) {
		if c, err := parseSocketCounts(four, six); err == nil && min(c.Open, c.TimeWait, c.Orphans, c.Allocated, c.Pages) < 0 {
			t.Errorf("%q, %q: negative: %+v", four, six, c)
		}
		in := fmt.Sprintf("sockets: used 1\nTCP: inuse %d orphan 0 tw 0 alloc 0 mem %d\n", open, mem)
		c, err := parseSocketCounts([]byte(in), six[:0])
		if want := (SocketCounts{Open: int64(open), Pages: int64(mem)}); err != nil || c != want {
			t.Errorf("%q: got %+v, %v; want %+v", in, c, err, want)
		}
	})
}

func TestReadSocketCounts(t *testing.T) {
	onlyLinux(t)
	listenTCP(t, "127.0.0.1:0")
	if c, err := ReadSocketCounts(); err != nil || c.Open < 1 || c.Allocated < 1 {
		t.Errorf("got %+v, %v with a socket that listens", c, err)
	}
}
