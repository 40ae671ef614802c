package pool

import "context"

// Submits that wait for space receive from one channel, which serves them in order. A Submit increments Pool.waiting
// and then looks for space. A worker takes a job and then reads Pool.waiting. At least one of the two therefore notices
// the other.
//
// A worker wakes one waiting Submit, and no further one until the woken Submit has run. The woken Submit takes the
// space it finds and, if there is more, wakes the next. When the pool closes, every Submit wakes the next.

// maxVainWakeups is how often a waiting call of Submit may be woken and then find no space, because newer calls have
// taken the space. After that, newer calls must wait behind it.
const maxVainWakeups = 3

// wakeWaitingSubmit wakes the call of Submit that has waited longest for space. If a call was woken before and has not
// run yet, wakeWaitingSubmit does nothing.
func (p *Pool) wakeWaitingSubmit() (woken bool) {
	if p.waiting.Load() == 0 || p.wakePending.Load() || !p.wakePending.CompareAndSwap(false, true) {
		return false
	}
	p.wake <- struct{}{}
	return true
}

func (p *Pool) waitForCapacityAndSubmit(t *Task) error {
	p.totalWaits.Add(1)
	p.waiting.Add(1)
	p.wakeController()
	vainWakeups := 0
	defer func() {
		p.waiting.Add(-1)
		if vainWakeups > maxVainWakeups {
			p.overtakenSubmits.Add(-1)
		}
		if p.isClosed() || p.hasCapacity() {
			p.wakeWaitingSubmit()
		}
	}()
	var ended <-chan struct{}
	if t.Ctx != nil {
		ended = t.Ctx.Done()
	}
	for {
		if vainWakeups > 0 || p.overtakenSubmits.Load() == 0 || p.isClosed() {
			if err := p.handToWorkerOrEnqueue(t); err != errNoCapacity {
				return err
			}
		}
		if vainWakeups++; vainWakeups == maxVainWakeups+1 {
			p.overtakenSubmits.Add(1)
		}
		select {
		case <-p.wake:
			p.wakePending.Store(false)
		case <-ended:
			return &expiredError{context.Cause(t.Ctx)}
		}
	}
}
