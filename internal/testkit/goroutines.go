package testkit

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

const leakTimeout = 10 * time.Second

// Main runs the tests of a package and exits. If goroutines still run 10 s after the last test, the exit status is 1.
func Main(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := WaitGoroutinesEnd(nil); err != nil {
			fmt.Fprintln(os.Stderr, "testkit:", err)
			code = 1
		}
	}
	os.Exit(code)
}

func GoroutineIDs() map[string]bool {
	ids := make(map[string]bool)
	for _, g := range runningGoroutines() {
		ids[g.id] = true
	}
	return ids
}

// WaitGoroutinesEnd waits until all goroutines have ended, but at most 10 s. It ignores the calling goroutine,
// goroutines of the testing and os/signal packages, and goroutines whose IDs are in ignoreIDs. If other goroutines
// still run after 10 s, the error contains their stacks.
func WaitGoroutinesEnd(ignoreIDs map[string]bool) error {
	end := time.Now().Add(leakTimeout)
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		var left []string
		for _, g := range runningGoroutines()[1:] { // the first one is the caller's
			if !ignoreIDs[g.id] && !g.isFromTestingOrSignal() {
				left = append(left, g.stack)
			}
		}
		switch {
		case len(left) == 0:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("goroutines still running: %d:\n\n%s", len(left), strings.Join(left, "\n\n"))
		}
		time.Sleep(pause)
	}
}

type goroutine struct{ id, stack string }

func (g goroutine) isFromTestingOrSignal() bool {
	for _, f := range []string{"testing.(*M).", "testing.(*T).Run(", "testing.runTests(", "testing.runFuzz", "os/signal.signal_recv(", "os/signal.loop(", "runtime.ReadTrace(", "runtime.ensureSigM"} {
		if strings.Contains(g.stack, "\n"+f) {
			return true
		}
	}
	return false
}

func runningGoroutines() (all []goroutine) {
	buf := make([]byte, 64<<10)
	n := runtime.Stack(buf, true)
	for n == len(buf) {
		buf = make([]byte, 2*len(buf))
		n = runtime.Stack(buf, true)
	}
	for stack := range strings.SplitSeq(string(buf[:n]), "\n\n") {
		id, _, _ := strings.Cut(strings.TrimPrefix(stack, "goroutine "), " ")
		all = append(all, goroutine{id, strings.TrimSpace(stack)})
	}
	return all
}
