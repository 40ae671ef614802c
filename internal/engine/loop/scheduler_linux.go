package loop

import (
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file calls Config.Scheduler.

type schedulerCaller struct {
	loop   *Loop
	nextAt time.Duration         // when the Scheduler is to be called, or never
	nudge  func(engine.Ref) bool // passed to the Scheduler; nil without one
}

func (p *schedulerCaller) nextDue() (at time.Duration, ok bool) { return p.nextAt, p.nextAt != never }

func (p *schedulerCaller) runIfDue(time.Duration) {
	if p.nudge == nil {
		return
	}
	l := p.loop
	l.phase.Store(phaseScheduler)
	now := engine.MonotonicNow()
	l.host.SetClock(now)
	if p.nextAt = l.engine.cfg.Scheduler(l.host.Index, now, p.nudge); p.nextAt < 0 {
		p.nextAt = never
	}
	l.performPendingActions()
	l.phase.Store(phaseTasks)
}

// nudgeNowOrByMail makes a connection call its handler's method Nudged. If another loop or a worker owns the
// connection, nudgeNowOrByMail posts a request to the owner's mailbox. If that mailbox is full, hadMailSpace is false.
// In all other cases it is true.
func (l *Loop) nudgeNowOrByMail(ref engine.Ref) (hadMailSpace bool) {
	c := ref.ConnIfOwnedBy(&l.host)
	if c == nil || c.DriverFlags()&Busy != 0 {
		return ref.Nudge() != engine.ErrFull
	}
	if len(l.pendingActions) == maxPendingActions { // so that few connections hold an output buffer at a time
		l.performPendingActions()
	}
	l.PerformActionsLater(c)
	c.CallNudgedIfOpen()
	return true
}
