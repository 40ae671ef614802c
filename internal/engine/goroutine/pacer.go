package goroutine

import (
	"runtime"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file is how a handler gets to act at times that it plans itself; see
// engine.Pace.

// runPacer is the pacer.
func (e *goroutineEngine) runPacer() {
	for !isClosed(e.workDone) {
		now := engine.MonotonicNow()
		next := e.cfg.Scheduler(-1, now, nudgeConn)
		if next < 0 {
			next = now + engine.MaxSchedulerDelay
		}
		yieldAndSleep(min(max(next-engine.MonotonicNow(), engine.MinSchedulerDelay), engine.MaxSchedulerDelay))
	}
}

// nudgeConn has Nudged called by mail, and says whether there was room for it.
func nudgeConn(ref engine.Ref) (ok bool) { return ref.Nudge() != engine.ErrFull }

// yieldAndSleep waits. First it lets those run that have got mail, as the thread may keep
// their turn for a moment.
func yieldAndSleep(d time.Duration) {
	runtime.Gosched()
	sock.Sleep(d)
}
