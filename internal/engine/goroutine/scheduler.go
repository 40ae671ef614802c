package goroutine

import (
	"runtime"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file calls Config.Scheduler.

// callConfigSchedulerWhenDue calls Config.Scheduler until all other goroutines have ended.
func (e *goroutineEngine) callConfigSchedulerWhenDue() {
	for !isChanClosed(e.workDone) {
		now := engine.MonotonicNow()
		next := e.cfg.Scheduler(-1, now, nudgeConn)
		if next < 0 {
			next = now + engine.MaxSchedulerDelay
		}
		yieldAndSleep(min(max(next-engine.MonotonicNow(), engine.MinSchedulerDelay), engine.MaxSchedulerDelay))
	}
}

// nudgeConn posts a request to call Nudged. If the mailbox is full, it returns false.
func nudgeConn(ref engine.Ref) (ok bool) { return ref.Nudge() != engine.ErrFull }

// yieldAndSleep lets waiting goroutines run, because its sleep may block their thread. It then sleeps for d.
func yieldAndSleep(d time.Duration) {
	runtime.Gosched()
	sock.Sleep(d)
}
