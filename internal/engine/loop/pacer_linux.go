package loop

import (
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file is how a handler gets to act at times that it plans itself; see
// engine.Pace.

// pacer calls the handler's Pace.
type pacer struct {
	loop   *Loop
	nextAt time.Duration         // when Pace wants to be called; never without one
	nudge  func(engine.Ref) bool // for Pace, made once; nil without one
}

func (p *pacer) nextDue() (at time.Duration, ok bool) { return p.nextAt, p.nextAt != never }

// runIfDue has what is due done, and settles the connections that were touched.
func (p *pacer) runIfDue(time.Duration) {
	if p.nudge == nil {
		return
	}
	l := p.loop
	l.phase.Store(phasePacing)
	now := engine.Since()
	l.host.SetClock(now)
	if p.nextAt = l.engine.cfg.Pace(l.host.Index, now, p.nudge); p.nextAt < 0 {
		p.nextAt = never
	}
	l.performPendingActions()
	l.phase.Store(phaseTasks)
}

// nudgeConn has Nudged called: at once, or by mail where the connection is with a
// worker, or another loop's. It says whether there was room for that.
func (l *Loop) nudgeConn(ref engine.Ref) (ok bool) {
	c := ref.On(&l.host)
	if c == nil || c.Armed()&Busy != 0 {
		return ref.Nudge() != engine.ErrFull
	}
	if len(l.pendingActions) == maxPendingActions { // few hold an output buffer at a time
		l.performPendingActions()
	}
	l.SettleLater(c)
	c.Touched()
	return true
}
