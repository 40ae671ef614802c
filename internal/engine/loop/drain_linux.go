package loop

import (
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file is how a loop ends its connections. They are told to drain in the
// order of their slots, so many a second, so that their clients do not all turn
// to other servers at the same moment; those that have not been told are served
// as before.

// drain is how far that has come.
type drain struct {
	loop  *Loop
	going bool
	start time.Duration
	again time.Duration // when some more are told
	told  int           // how many
	slot  uint32        // the next
}

// applyStop begins the stage of stopping that is wanted of the loop.
func (l *Loop) applyStop() {
	told := l.wanted.Load()
	if told == l.stage {
		return
	}
	if l.stage < stopping {
		l.stage = stopping
		l.closeListeners()
		l.arrivals.end()
		l.drain.going, l.drain.start = true, l.host.Clock()
		l.departure.sender.Fail(engine.ErrClosed)
	}
	if told == killing {
		l.drain.going = false
		l.departure.abort(engine.ErrClosed)
		if l.waiting.end == nil {
			l.waiting.end = engine.ErrServerClosed // waiting.run closes the connections that wait
		}
		l.Each(func(c *engine.Conn) { l.Abort(c, engine.ErrServerClosed) })
	}
	l.stage = told
}

func (d *drain) next() (at time.Duration, ok bool) { return d.again, d.going }

// run tells as many as may be told by now, for no longer than a slice.
func (d *drain) run(now time.Duration) {
	if !d.going || now < d.again {
		return
	}
	most, end := d.allowed(now-d.start), engine.MonotonicNow()+slice
	for d.slot < d.loop.slab.made {
		if d.told >= most {
			d.again = now + engine.DrainInterval
			return
		}
		if engine.MonotonicNow() >= end {
			return
		}
		d.loop.slab.each(d.slot, d.slot+1, func(c *engine.Conn) {
			d.told++
			d.loop.drainConn(c)
		})
		d.slot++
	}
	d.going = false
}

// allowed is how many may have been told so long after the start.
func (d *drain) allowed(passed time.Duration) int {
	g := d.loop.group
	rate := g.cfg.Limits.ShutdownRate
	if rate > 0 {
		rate = max(rate/len(g.loops), 1)
	}
	return engine.DrainAllowance(rate, passed)
}

// drainConn drains a connection: it ends at its next idle moment.
func (l *Loop) drainConn(c *engine.Conn) {
	switch armed := c.DriverFlags(); {
	case armed&Connecting != 0:
		l.dialFailed(c, engine.ErrClosed)
	case armed&Busy != 0:
		l.Later(c, c.StartDrain)
	default:
		c.StartDrain()
		l.driver.Settle(c)
	}
}
