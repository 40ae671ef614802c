package procfs

import (
	"fmt"
	"testing"
)

const meminfo = `MemTotal:       24684092 kB
MemFree:        24427216 kB
MemAvailable:   24392976 kB
Active(anon):       1512 kB
Slab:              81676 kB
HugePages_Total:       0
`

func TestParseMeminfo(t *testing.T) {
	m, err := parseMeminfo([]byte(meminfo))
	want := Meminfo{Total: 24684092 << 10, Free: 24427216 << 10, Available: 24392976 << 10, Slab: 81676 << 10}
	if err != nil || m != want {
		t.Errorf("got %+v, %v, want %+v", m, err, want)
	}
	for _, in := range []string{"", "MemFree: 1 kB\n", "MemTotal: x kB\n", "MemTotal: -1 kB\n"} {
		if m, err := parseMeminfo([]byte(in)); err == nil {
			t.Errorf("%q: got %+v, want an error", in, m)
		}
	}
}

func FuzzParseMeminfo(f *testing.F) {
	f.Add(uint32(1), uint32(2), []byte(meminfo))
	f.Fuzz(func(t *testing.T, total, slab uint32, raw []byte) {
		if m, err := parseMeminfo(raw); err == nil && min(m.Total, m.Free, m.Available, m.Slab) < 0 {
			t.Errorf("%q: negative size: %+v", raw, m)
		}
		in := fmt.Sprintf("MemTotal: %d kB\nHugePages_Total: 0\nSlab:%12d kB\n", total, slab)
		m, err := parseMeminfo([]byte(in))
		if want := (Meminfo{Total: int64(total) << 10, Slab: int64(slab) << 10}); err != nil || m != want {
			t.Errorf("%q: got %+v, %v, want %+v", in, m, err, want)
		}
	})
}

func TestParseCPUModel(t *testing.T) {
	for in, want := range map[string]string{
		"processor\t: 0\nmodel name\t: Fast CPU @ 3.0GHz: x\nmodel name\t: Other\n": "Fast CPU @ 3.0GHz: x",
		"processor\t: 0\nBogoMIPS\t: 50\n":                                          "",
		"":                                                                          "",
	} {
		if got := parseCPUModel([]byte(in)); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestParseFirstCPU(t *testing.T) {
	for in, want := range map[string]int{"0\n": 0, "3-5\n": 3, "12,44\n": 12} {
		if got, err := parseFirstCPU([]byte(in)); err != nil || got != want {
			t.Errorf("%q: got %d, %v, want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "x", "-1", "99999999999"} {
		if got, err := parseFirstCPU([]byte(in)); err == nil {
			t.Errorf("%q: got %d, want an error", in, got)
		}
	}
}
