package loop

import (
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file is how a loop ends its connections. They are told to drain in the
// order of their slots, so many a second, so that their clients do not all turn
// to other servers at the same moment; those that have not been told are served
// as before.

// connDrainer is how far that has come.
type connDrainer struct {
	loop         *Loop
	active       bool
	startedAt    time.Duration
	nextAt       time.Duration // when some more are told
	drainedCount int           // how many
	nextSlot     uint32        // the next
}

// applyRequestedStage begins the stage of stopping that is wanted of the loop.
func (l *Loop) applyRequestedStage() {
	requested := l.requestedStage.Load()
	if requested == l.stopStage {
		return
	}
	if l.stopStage < stageStopping {
		l.stopStage = stageStopping
		l.closeListeners()
		l.importer.closeChannels()
		l.drainer.active, l.drainer.startedAt = true, l.host.Clock()
		l.exporter.sender.Fail(engine.ErrClosed)
	}
	if requested == stageKilling {
		l.drainer.active = false
		l.exporter.abort(engine.ErrClosed)
		if l.submitQueue.closeReason == nil {
			l.submitQueue.closeReason = engine.ErrServerClosed // waiting.run closes the connections that wait
		}
		l.ForEachConn(func(c *engine.Conn) { l.AbortConn(c, engine.ErrServerClosed) })
	}
	l.stopStage = requested
}

func (d *connDrainer) nextDue() (at time.Duration, ok bool) { return d.nextAt, d.active }

// runIfDue tells as many as may be told by now, for no longer than a slice.
func (d *connDrainer) runIfDue(now time.Duration) {
	if !d.active || now < d.nextAt {
		return
	}
	limit, end := d.maxDrainedAfter(now-d.startedAt), engine.Since()+maxTaskTime
	for d.nextSlot < d.loop.conns.slotCount {
		if d.drainedCount >= limit {
			d.nextAt = now + engine.DrainEvery
			return
		}
		if engine.Since() >= end {
			return
		}
		d.loop.conns.forEach(d.nextSlot, d.nextSlot+1, func(c *engine.Conn) {
			d.drainedCount++
			d.loop.drainConn(c)
		})
		d.nextSlot++
	}
	d.active = false
}

// maxDrainedAfter is how many may have been told so long after the start.
func (d *connDrainer) maxDrainedAfter(elapsed time.Duration) int {
	e := d.loop.engine
	rate := e.cfg.Limits.ShutdownRate
	if rate > 0 {
		rate = max(rate/len(e.loops), 1)
	}
	return engine.MayDrain(rate, elapsed)
}

// drainConn drains a connection: it ends at its next idle moment.
func (l *Loop) drainConn(c *engine.Conn) {
	switch armed := c.Armed(); {
	case armed&Connecting != 0:
		l.failDial(c, engine.ErrClosed)
	case armed&Busy != 0:
		l.DeferUntilReturned(c, c.Drain)
	default:
		c.Drain()
		l.driver.PerformActions(c)
	}
}
