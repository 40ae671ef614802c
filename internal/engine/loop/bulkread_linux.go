package loop

import "github.com/myriad-go/myriad/internal/engine"

// Fairness between bulk connections and others.
//
// A connection is bulk if a read has brought more than BulkReadSize bytes. Its driver stops watching it for
// input; instead it waits in a round-robin queue. Each turn first handles pending events, and then reads from
// the queue for as long as those events took, at most maxTaskTime. A smaller read makes the connection
// ordinary again. So floods cost other connections at most half of the time and maxTaskTime a turn, whatever
// their number: sparse flows go first, as in FQ-CoDel (RFC 8290).
//
// A connection whose handler has yielded (Conn.YieldInput) waits in the same queue with its input.
//
// The queue contains Refs, so that connections that have begun to close are skipped. IsReadQueued clears
// their bit.

const (
	// BulkReadSize is the largest read of a connection that is not bulk, in bytes.
	BulkReadSize    = 16 << 10
	minBulkReadTime = maxTaskTime / 8
)

// QueueIfBulk queues c for reading if a read has brought more than BulkReadSize bytes. Drivers call it after
// Arrived.
func (l *Loop) QueueIfBulk(c *engine.Conn, readBytes int) {
	if readBytes > BulkReadSize {
		l.QueueForLaterRead(c)
	}
}

// QueueForLaterRead implements engine.Loop: the loop reads from c in one of its next turns.
func (l *Loop) QueueForLaterRead(c *engine.Conn) {
	if c.DriverFlags()&BulkQueued == 0 && !c.IsClosing() {
		c.SetDriverFlags(c.DriverFlags() | BulkQueued)
		l.bulkReads.pushBack(c.Ref())
	}
}

// IsReadQueued reports whether the loop will read from c, so that the driver must not watch it for input. A
// connection that is closing is not queued.
func (l *Loop) IsReadQueued(c *engine.Conn) bool {
	if c.DriverFlags()&BulkQueued != 0 && c.IsClosing() {
		c.SetDriverFlags(c.DriverFlags() &^ BulkQueued)
	}
	return c.DriverFlags()&BulkQueued != 0
}

// readQueuedBulkConns reads once from each bulk connection until its time is used up. Connections that are busy, or
// that do not want input, are watched again later.
func (l *Loop) readQueuedBulkConns() {
	start := engine.MonotonicNow()
	end := start + max(min(start-l.turnStart, maxTaskTime), minBulkReadTime)
	for n := l.bulkReads.n; n > 0; n-- {
		c := l.bulkReads.front().ConnOwnedBy(&l.host)
		l.bulkReads.popFront()
		if c == nil {
			continue
		}
		c.SetDriverFlags(c.DriverFlags() &^ BulkQueued)
		if c.DriverFlags()&Busy != 0 {
			continue
		}
		if c.ClearYield(); c.WantsInput() {
			l.readOrSpliceToPartner(c)
		}
		l.driver.PerformActions(c)
		if engine.MonotonicNow() >= end {
			return
		}
	}
}
