package procfs

import (
	"fmt"
	"testing"
)

const rollup = `55afe18c7000-7ffc2a5ac000 ---p 00000000 00:00 0                          [rollup]
Rss:                1780 kB
Pss:                 579 kB
Pss_Dirty:           112 kB
Shared_Clean:       1568 kB
SwapPss:               0 kB
`

func TestParseSmapsRollup(t *testing.T) {
	m, err := parseSmapsRollup([]byte(rollup))
	if want := (Memory{RSS: 1780 << 10, PSS: 579 << 10}); err != nil || m != want {
		t.Errorf("got %+v, %v, want %+v", m, err, want)
	}
	for name, in := range map[string]string{
		"empty":        "",
		"no Rss":       "Pss: 1 kB\n",
		"not a number": "Rss: many kB\n",
		"negative":     "Rss: -1 kB\n",
		"overflow":     "Rss: 9223372036854775807 kB\n",
	} {
		if m, err := parseSmapsRollup([]byte(in)); err == nil {
			t.Errorf("%s: got %+v, want an error", name, m)
		}
	}
}

func TestParseStatm(t *testing.T) {
	m, err := parseStatm([]byte("785 379 292 11 0 92 0\n"), 4096)
	if want := (Memory{RSS: 379 * 4096}); err != nil || m != want {
		t.Errorf("got %+v, %v, want %+v", m, err, want)
	}
	for _, in := range []string{"", "785", "785 x", "785 -1", "785 9223372036854775807"} {
		if m, err := parseStatm([]byte(in), 4096); err == nil {
			t.Errorf("%q: got %+v, want an error", in, m)
		}
	}
}

func FuzzParseSmapsRollup(f *testing.F) {
	f.Add(uint32(1780), uint32(579), []byte(rollup))
	f.Add(uint32(0), uint32(0), []byte("Rss: 18446744073709551615 kB"))
	f.Fuzz(func(t *testing.T, rss, pss uint32, raw []byte) {
		if m, err := parseSmapsRollup(raw); err == nil && (m.RSS < 0 || m.PSS < 0) {
			t.Errorf("%q: negative size: %+v", raw, m)
		}
		in := fmt.Sprintf("0-1 ---p [rollup]\nRss: %10d kB\nPss: %10d kB\n", rss, pss)
		m, err := parseSmapsRollup([]byte(in))
		if want := (Memory{RSS: int64(rss) << 10, PSS: int64(pss) << 10}); err != nil || m != want {
			t.Errorf("%q: got %+v, %v, want %+v", in, m, err, want)
		}
	})
}
