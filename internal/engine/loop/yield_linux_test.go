package loop

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// goroutineStarter is a driver whose first turns start goroutines.
type goroutineStarter struct {
	idleDriver
	started, waitsWhileBusy atomic.Int64
	finished, polledIdle    atomic.Int64
}

const goroutinesStarted = 200

func (r *goroutineStarter) HandleEvents() (handled, left bool) {
	if r.finished.Load() == r.started.Load() {
		r.polledIdle.Add(1)
	}
	if r.started.Load() < goroutinesStarted {
		r.started.Add(1)
		r.loop.host.RetainCalls.Add(1)
		go r.finished.Add(1)
	} else if r.polls.Add(1) == 1 {
		r.waitsWhileBusy.Store(r.waits.Load())
	}
	return false, false
}

// On one processor, a loop that has given goroutines work does not sleep before they have done it; afterwards
// it does.
func TestYieldToGoroutines(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	r := &goroutineStarter{}
	startLoop(t, 0, func(l *Loop) Driver {
		r.loop = l
		return r
	})
	testkit.WaitFor(t, "the loop does not sleep when nothing is left to do", func() bool { return r.waits.Load() > 0 })
	if n := r.waitsWhileBusy.Load(); n > 0 {
		t.Errorf("the loop slept %d times while goroutines had work", n)
	}
	// A turn polls twice and yields once in between.
	if n := r.polledIdle.Load(); n < goroutinesStarted/4 {
		t.Errorf("of %d goroutines, %d had finished when the loop continued, want about %d", goroutinesStarted, n, goroutinesStarted/2)
	}
}
