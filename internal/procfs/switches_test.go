package procfs

import (
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestParseSwitches(t *testing.T) {
	s, err := parseSwitches([]byte("Name:\tx\nvoluntary_ctxt_switches:\t120\nnonvoluntary_ctxt_switches:\t7\n"))
	if want := (Switches{120, 7}); err != nil || s != want {
		t.Errorf("got %+v, %v, want %+v", s, err, want)
	}
	for text, says := range map[string]string{
		"Name:\tx\n":                      "no lines",
		"voluntary_ctxt_switches:\t1\n":   "no lines",
		"voluntary_ctxt_switches:\t-1\n":  "voluntary_ctxt_switches",
		"nonvoluntary_ctxt_switches:\t\n": "nonvoluntary_ctxt_switches",
	} {
		if _, err := parseSwitches([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: got %v, want an error with %q", text, err, says)
		}
	}
}

// TestReadSwitches has another thread than the first wait a few times.
func TestReadSwitches(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("no /proc")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := ReadSwitches(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	after, waits := before, 0
	for ; err == nil && after.Voluntary < before.Voluntary+10 && waits < 1000; waits++ { // on a busy machine some are over before they begin
		time.Sleep(time.Millisecond)
		after, err = ReadSwitches(os.Getpid())
	}
	if err != nil || after.Voluntary < before.Voluntary+10 {
		t.Errorf("got %+v, %v after %d waits, before %+v", after, err, waits, before)
	}
	if _, err := ReadSwitches(1 << 30); !Gone(err) {
		t.Errorf("no such process: got %v, want an error that says gone", err)
	}
}
