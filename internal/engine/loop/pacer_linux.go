package loop

import (
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// Calling a handler's Pace; see engine.Pace.

type paceCaller struct {
	loop   *Loop
	nextAt time.Duration         // when Pace is to be called; never without one
	nudge  func(engine.Ref) bool // passed to Pace; nil without one
}

func (p *paceCaller) nextDue() (at time.Duration, ok bool) { return p.nextAt, p.nextAt != never }

func (p *paceCaller) runIfDue(time.Duration) {
	if p.nudge == nil {
		return
	}
	l := p.loop
	l.phase.Store(phasePacing)
	now := engine.MonotonicNow()
	l.host.SetClock(now)
	if p.nextAt = l.engine.cfg.Scheduler(l.host.Index, now, p.nudge); p.nextAt < 0 {
		p.nextAt = never
	}
	l.performPendingActions()
	l.phase.Store(phaseTasks)
}

// nudgeConn calls Nudged for a connection: at once, or by mail if it is with a worker or belongs to another
// loop. It reports false if there was no capacity for the mail.
func (l *Loop) nudgeConn(ref engine.Ref) (ok bool) {
	c := ref.ConnOwnedBy(&l.host)
	if c == nil || c.DriverFlags()&Busy != 0 {
		return ref.Nudge() != engine.ErrFull
	}
	if len(l.pendingActions) == maxPendingActions { // few hold an output buffer at a time
		l.performPendingActions()
	}
	l.SettleLater(c)
	c.OnNudge()
	return true
}
