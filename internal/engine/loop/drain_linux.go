package loop

import (
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file drains connections at shutdown. Connections start to drain in the order of their slots and at a limited
// rate, so that not all clients reconnect to other servers at once. Connections that do not drain yet are served as
// before.

type connDrainer struct {
	loop         *Loop
	active       bool
	startedAt    time.Duration
	nextAt       time.Duration
	drainedCount int // connections that were told to drain
	nextSlot     uint32
}

func (l *Loop) applyRequestedStopStage() {
	requested := l.requestedStopStage.Load()
	if requested == l.stopStage {
		return
	}
	if l.stopStage < stageStopping {
		l.stopStage = stageStopping
		l.closeListeners()
		l.importer.closeAllChannels()
		l.drainer.active, l.drainer.startedAt = true, l.host.Clock()
		l.exporter.sender.Fail(engine.ErrClosed)
	}
	if requested == stageKilling {
		l.drainer.active = false
		l.exporter.abortHandOver(engine.ErrClosed)
		if l.submitQueue.closeReason == nil {
			l.submitQueue.closeReason = engine.ErrServerClosed // its runIfDue closes the waiting connections
		}
		l.ForEachConn(func(c *engine.Conn) { l.AbortConnOrFailDial(c, engine.ErrServerClosed) })
	}
	l.stopStage = requested
}

func (d *connDrainer) nextDue() (at time.Duration, ok bool) { return d.nextAt, d.active }

func (d *connDrainer) runIfDue(now time.Duration) {
	if !d.active || now < d.nextAt {
		return
	}
	limit, end := d.maxConnsDrainedAfter(now-d.startedAt), engine.MonotonicNow()+maxTaskTime
	for d.nextSlot < d.loop.conns.slotCount {
		if d.drainedCount >= limit {
			d.nextAt = now + engine.DrainInterval
			return
		}
		if engine.MonotonicNow() >= end {
			return
		}
		d.loop.conns.forEachConnInUse(d.nextSlot, d.nextSlot+1, func(c *engine.Conn) {
			d.drainedCount++
			d.loop.startDrainOrFailDial(c)
		})
		d.nextSlot++
	}
	d.active = false
}

func (d *connDrainer) maxConnsDrainedAfter(elapsed time.Duration) int {
	e := d.loop.engine
	rate := e.cfg.Limits.ShutdownRate
	if rate > 0 {
		rate = max(rate/len(e.loops), 1)
	}
	return engine.MaxDrainedAfter(rate, elapsed)
}

func (l *Loop) startDrainOrFailDial(c *engine.Conn) {
	switch armed := c.DriverFlags(); {
	case armed&Connecting != 0:
		l.failDial(c, engine.ErrClosed)
	case armed&Busy != 0:
		l.DeferUntilWorkerReturns(c, c.BeginShutdownDrain)
	default:
		c.BeginShutdownDrain()
		l.driver.PerformActions(c)
	}
}
