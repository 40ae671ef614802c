package goroutine

import (
	"runtime"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// Calling a handler's Pace; see engine.Pace.

// runScheduler calls Config.Pace until all other goroutines have ended.
func (e *goroutineEngine) runScheduler() {
	for !isChanClosed(e.workDone) {
		now := engine.MonotonicNow()
		next := e.cfg.Scheduler(-1, now, nudgeConn)
		if next < 0 {
			next = now + engine.MaxSchedulerDelay
		}
		yieldAndSleep(min(max(next-engine.MonotonicNow(), engine.MinSchedulerDelay), engine.MaxSchedulerDelay))
	}
}

// nudgeConn has Nudged called by mail. It reports false if there was no capacity for the mail.
func nudgeConn(ref engine.Ref) (ok bool) { return ref.Nudge() != engine.ErrFull }

// yieldAndSleep sleeps. First it lets those goroutines run that have got mail, because the thread may delay
// them for a moment.
func yieldAndSleep(d time.Duration) {
	runtime.Gosched()
	sock.Sleep(d)
}
