package loop

import (
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file is how a handler gets to act at times that it plans itself; see
// engine.Pace.

// pacer calls the handler's Pace.
type pacer struct {
	loop  *Loop
	at    time.Duration         // when Pace wants to be called; never without one
	touch func(engine.Ref) bool // for Pace, made once; nil without one
}

func (p *pacer) next() (at time.Duration, ok bool) { return p.at, p.at != never }

// run has what is due done, and settles the connections that were touched.
func (p *pacer) run(time.Duration) {
	if p.touch == nil {
		return
	}
	l := p.loop
	l.doing.Store(planned)
	now := engine.MonotonicNow()
	l.host.SetClock(now)
	if p.at = l.group.cfg.Scheduler(l.host.Index, now, p.touch); p.at < 0 {
		p.at = never
	}
	l.settleTouched()
	l.doing.Store(upkeep)
}

// touchOne has Nudged called: at once, or by mail where the connection is with a
// worker, or another loop's. It says whether there was room for that.
func (l *Loop) touchOne(r engine.Ref) (ok bool) {
	c := r.ConnOwnedBy(&l.host)
	if c == nil || c.DriverFlags()&Busy != 0 {
		return r.Nudge() != engine.ErrFull
	}
	if len(l.touched) == touchBatch { // few hold an output buffer at a time
		l.settleTouched()
	}
	l.SettleLater(c)
	c.OnNudge()
	return true
}
