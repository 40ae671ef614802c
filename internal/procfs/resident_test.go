package procfs

import (
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

func TestParseResident(t *testing.T) {
	r, err := parseResident([]byte("Name:\ta kB\nUmask:\t0022\nVmPeak:\t 9999 kB\nVmHWM:\t  200 kB\nVmRSS:\t  100 kB\nRssAnon:\t   60 kB\nThreads:\t3\n"))
	if want := (Resident{Now: 100 << 10, Peak: 200 << 10, Anonymous: 60 << 10}); err != nil || r != want {
		t.Errorf("got %+v, %v, want %+v", r, err, want)
	}
	// The kernel sums up Now later than Peak.
	r, err = parseResident([]byte("Name:\ta\nVmHWM:\t200 kB\nVmRSS:\t204 kB\n"))
	if want := (Resident{Now: 204 << 10, Peak: 204 << 10}); err != nil || r != want {
		t.Errorf("got %+v, %v, want %+v", r, err, want)
	}
	for text, says := range map[string]string{
		"VmHWM:\t1 kB\n":                "no lines",
		"VmRSS:\t1 kB\n":                "no lines",
		"Threads:\t1\n":                 "no lines",
		"VmHWM:\t-1 kB\nVmRSS:\t1 kB\n": "out of range",
		"VmHWM:\t1 kB\nVmRSS:\tx kB\n":  "VmRSS",
	} {
		if _, err := parseResident([]byte("Name:\tVmHWM\n" + text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: got %v, want an error with %q", text, err, says)
		}
	}
}

// TestReadResident holds memory and gives it back: the peak stays.
func TestReadResident(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("no /proc")
	}
	const size = 64 << 20
	before, err := ReadResident(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	held := make([]byte, size)
	for i := 0; i < len(held); i += os.Getpagesize() {
		held[i] = 1
	}
	holding, err := ReadResident(os.Getpid())
	runtime.KeepAlive(held)
	if err != nil || holding.Now < before.Now+size/2 || holding.Peak < before.Now+size/2 {
		t.Errorf("got %+v, %v with %d bytes more than %+v", holding, err, size, before)
	}
	held = nil
	debug.FreeOSMemory()
	after, err := ReadResident(os.Getpid())
	if err != nil || after.Now > holding.Now-size/2 || after.Peak < holding.Peak-size/8 {
		t.Errorf("got %+v, %v after giving back %d bytes of %+v", after, err, size, holding)
	}
}
