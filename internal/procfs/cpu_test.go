package procfs

import (
	"fmt"
	"testing"
	"time"
)

const procStat = `cpu  2048 1 1013 144940 309 2 23 11 7 7
cpu0 759 0 328 73095 9 0 1 2 0 0
cpu12 1289 1 685 71844 300 2 22 9 7 7
intr 131559 0 0
ctxt 259865
`

func TestParseCPUs(t *testing.T) {
	c, err := parseCPUs([]byte(procStat))
	if err != nil {
		t.Fatal(err)
	}
	all := CPUTime{Busy: (2048 + 1 + 1013 + 2 + 23) * tick, Idle: (144940 + 309) * tick, Stolen: 11 * tick}
	if c.All != all {
		t.Errorf("all: got %+v, want %+v", c.All, all)
	}
	twelve := CPUTime{Busy: (1289 + 1 + 685 + 2 + 22) * tick, Idle: (71844 + 300) * tick, Stolen: 9 * tick}
	if len(c.Each) != 2 || c.Each[12] != twelve {
		t.Errorf("each: got %+v, want 12 to be %+v", c.Each, twelve)
	}
}

func TestParseCPUsRefuses(t *testing.T) {
	for name, in := range map[string]string{
		"empty":           "",
		"no sum":          "cpu0 1 2 3 4\n",
		"too few columns": "cpu 1 2 3\n",
		"not a number":    "cpu 1 2 3 x\n",
		"no CPU number":   "cpu 1 2 3 4\ncpux 1 2 3 4\n",
		"sum overflows":   "cpu 900000000000 900000000000 3 4\n",
	} {
		if c, err := parseCPUs([]byte(in)); err == nil {
			t.Errorf("%s: got %+v, want an error", name, c)
		}
	}
}

func TestParseCPUsOldKernel(t *testing.T) {
	c, err := parseCPUs([]byte("cpu 1 2 3 4\n"))
	if want := (CPUTime{Busy: 6 * tick, Idle: 4 * tick}); err != nil || c.All != want {
		t.Errorf("got %+v, %v, want %+v", c.All, err, want)
	}
}

func FuzzParseCPUs(f *testing.F) {
	f.Add(uint32(1), uint32(2), uint32(3), []byte(procStat))
	f.Add(uint32(0), uint32(0), uint32(0), []byte("cpu 922337203685 922337203685 0 0\n"))
	f.Fuzz(func(t *testing.T, user, idle, steal uint32, raw []byte) {
		if c, err := parseCPUs(raw); err == nil && min(c.All.Busy, c.All.Idle, c.All.Stolen) < 0 {
			t.Errorf("%q: negative time: %+v", raw, c.All)
		}
		in := fmt.Sprintf("cpu  %d 0 0 %d 0 0 0 %d 0 0\ncpu3 %d 0 0 %d 0 0 0 %d\n", user, idle, steal, user, idle, steal)
		c, err := parseCPUs([]byte(in))
		want := CPUTime{Busy: time.Duration(user) * tick, Idle: time.Duration(idle) * tick, Stolen: time.Duration(steal) * tick}
		if err != nil || c.All != want || c.Each[3] != want {
			t.Errorf("%q: got %+v, %v, want %+v", in, c, err, want)
		}
	})
}
