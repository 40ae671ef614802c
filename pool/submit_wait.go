package pool

import (
	"context"
	"sync/atomic"
)

// Submits that wait for room receive from one channel, which serves them in the order
// in which they came. A Submit counts itself, looks for room and then receives; a worker
// that takes a job looks at the count afterwards: so one of the two sees the other. The
// worker wakes one, and no further one until that has run: it takes the room that it
// finds and wakes the next if there is more. So a worker that is busy with short jobs
// does not pay for each that waits, and nobody waits while there is room. One that finds
// no room, because a newcomer was quicker, receives again behind the others; after the
// third time newcomers have to wait, too. When the pool closes each wakes the next.

// maxVainWakeups is how often a Submit is woken in vain before newcomers have to wait.
const maxVainWakeups = 3

type waiters struct {
	waiting       atomic.Int32
	totalWaits    atomic.Uint64 // that ever waited
	wakePending   atomic.Bool   // one is woken, and has not run yet
	newcomersWait atomic.Int32  // how many ask that newcomers wait
	wake          chan struct{} // has room for one
}

// wakeWaiter wakes the first Submit that waits, unless one is awake already. It reports
// whether it did.
func (l *waiters) wakeWaiter() bool {
	if l.waiting.Load() == 0 || l.wakePending.Load() || !l.wakePending.CompareAndSwap(false, true) {
		return false
	}
	l.wake <- struct{}{}
	return true
}

// waitForCapacity submits a job that has found no room as soon as there is some.
func (p *Pool) waitForCapacity(t *Task) error {
	l := &p.waiters
	l.totalWaits.Add(1)
	l.waiting.Add(1)
	p.wakeController()
	vainWakeups := 0
	defer func() {
		l.waiting.Add(-1)
		if vainWakeups > maxVainWakeups {
			l.newcomersWait.Add(-1)
		}
		if p.closed.Load() || p.hasCapacity() {
			l.wakeWaiter()
		}
	}()
	var ended <-chan struct{}
	if t.Ctx != nil {
		ended = t.Ctx.Done()
	}
	for {
		if vainWakeups > 0 || l.newcomersWait.Load() == 0 || p.closed.Load() {
			if err := p.acceptTask(t); err != errNoCapacity {
				return err
			}
		}
		if vainWakeups++; vainWakeups == maxVainWakeups+1 {
			l.newcomersWait.Add(1)
		}
		select {
		case <-l.wake:
			l.wakePending.Store(false)
		case <-ended:
			return &expiredError{context.Cause(t.Ctx)}
		}
	}
}
