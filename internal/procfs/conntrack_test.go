package procfs

import (
	"fmt"
	"maps"
	"testing"
)

func TestParseTrackerCounters(t *testing.T) {
	got, err := parseTrackerCounters([]byte("entries  found drop\n00000009  0000000a 00000001\n00000009  00000001 00000010\n"))
	if want := map[string]int64{"found": 11, "drop": 17}; err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	for _, in := range []string{
		"", "entries found\n", "entries found\n1 x\n", "entries found\n1 -1\n", "entries\n1\n",
		"entries found\n1 7fffffffffffffff\n1 1\n",
	} {
		if got, err := parseTrackerCounters([]byte(in)); err == nil {
			t.Errorf("%q: got %v, want an error", in, got)
		}
	}
}

func FuzzParseTrackerCounters(f *testing.F) {
	f.Add(uint32(1), uint32(2), []byte("entries drop\n0 1\n0 2\n"))
	f.Fuzz(func(t *testing.T, a, b uint32, raw []byte) {
		got, err := parseTrackerCounters(raw)
		for name, n := range got {
			if err != nil || n < 0 {
				t.Errorf("%q: %s is %d, %v", raw, name, n, err)
			}
		}
		in := fmt.Appendf(nil, "entries drop\n0 %08x\n0 %08x\n", a, b)
		if got, err := parseTrackerCounters(in); err != nil || got["drop"] != int64(a)+int64(b) {
			t.Errorf("%q: got %v, %v", in, got, err)
		}
	})
}

// TestReadTrackerCounters reads them where there is a tracker.
func TestReadTrackerCounters(t *testing.T) {
	onlyLinux(t)
	_, none := ReadSysctl("net.netfilter.nf_conntrack_count")
	if got, err := ReadTrackerCounters(); (err == nil) != (none == nil) || err == nil && got["drop"] < 0 {
		t.Errorf("got %v, %v, and the count of connections says %v", got, err, none)
	}
}
