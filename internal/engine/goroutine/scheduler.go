package goroutine

import (
	"runtime"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file calls Config.Scheduler.

// runConfigSchedulerLoop calls Config.Scheduler until all other goroutines of the engine have ended.
func (e *goroutineEngine) runConfigSchedulerLoop() {
	for !isChanClosed(e.workDone) {
		now := engine.MonotonicNow()
		next := e.cfg.Scheduler(-1, now, nudgeConn)
		if next < 0 {
			next = now + engine.MaxSchedulerDelay
		}
		yieldAndSleep(min(max(next-engine.MonotonicNow(), engine.MinSchedulerDelay), engine.MaxSchedulerDelay))
	}
}

// nudgeConn asks a connection to call its handler's method Nudged. It returns false if the connection's mailbox is
// full.
func nudgeConn(ref engine.Ref) (ok bool) { return ref.Nudge() != engine.ErrFull }

// yieldAndSleep lets other goroutines run and then sleeps for d. The sleep may block the current thread.
func yieldAndSleep(d time.Duration) {
	runtime.Gosched()
	sock.Sleep(d)
}
