package goroutine

import (
	"runtime"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file is how a handler gets to act at times that it plans itself; see
// engine.Pace.

// paceAll is the pacer.
func (g *group) paceAll() {
	for !isClosed(g.idle) {
		now := engine.MonotonicNow()
		next := g.cfg.Scheduler(-1, now, touch)
		if next < 0 {
			next = now + engine.MaxSchedulerDelay
		}
		nap(min(max(next-engine.MonotonicNow(), engine.MinSchedulerDelay), engine.MaxSchedulerDelay))
	}
}

// touch has Nudged called by mail, and says whether there was room for it.
func touch(r engine.Ref) (ok bool) { return r.Nudge() != engine.ErrFull }

// nap waits. First it lets those run that have got mail, as the thread may keep
// their turn for a moment.
func nap(d time.Duration) {
	runtime.Gosched()
	sock.Sleep(d)
}
