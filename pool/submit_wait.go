package pool

import (
	"context"
	"sync/atomic"
)

// Submits that wait for space receive from one channel, which serves them in order. A Submit counts itself and then
// looks for space. A worker looks at the count after it has taken a job. At least one of the two notices the other.
//
// A worker wakes one waiting Submit, and no further one until the woken Submit has run. The woken Submit takes the
// space it finds and, if there is more, wakes the next. A worker with short jobs therefore does not spend time on every
// waiting Submit, and no Submit waits while there is space. If a newcomer has taken the space first, the woken Submit
// waits again; after the third time, newcomers must wait, too. When the pool closes, every Submit wakes the next.

// maxVainWakeups limits how often a Submit is woken without finding space. Then new calls must wait.
const maxVainWakeups = 3

type waiters struct {
	waiting       atomic.Int32
	totalWaits    atomic.Uint64 // Submits that ever waited
	wakePending   atomic.Bool   // one was woken and has not run yet
	newcomersWait atomic.Int32  // Submits that require newcomers to wait
	wake          chan struct{} // capacity 1
}

// wakeWaitingSubmit wakes the first waiting Submit, unless a woken Submit has not run yet.
func (l *waiters) wakeWaitingSubmit() (woken bool) {
	if l.waiting.Load() == 0 || l.wakePending.Load() || !l.wakePending.CompareAndSwap(false, true) {
		return false
	}
	l.wake <- struct{}{}
	return true
}

func (p *Pool) waitForCapacityAndSubmit(t *Task) error {
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
			l.wakeWaitingSubmit()
		}
	}()
	var ended <-chan struct{}
	if t.Ctx != nil {
		ended = t.Ctx.Done()
	}
	for {
		if vainWakeups > 0 || l.newcomersWait.Load() == 0 || p.closed.Load() {
			if err := p.handToWorkerOrEnqueue(t); err != errNoCapacity {
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
