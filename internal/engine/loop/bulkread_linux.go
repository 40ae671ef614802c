package loop

import "github.com/myriad-go/myriad/internal/engine"

// This file limits the time that bulk connections take from others.
//
// A connection is bulk if a read has returned more than BulkReadSize bytes. Its driver then stops watching it for
// input; instead it waits in a round-robin queue. Each turn first handles pending events, and then reads from the queue
// for as long as the events took, but at most maxTaskTime. A smaller read ends the bulk state. So bulk connections,
// whatever their number, delay others by at most half of the time, and by at most maxTaskTime per turn. FQ-CoDel (RFC
// 8290) serves sparse flows first in the same way.
//
// A connection whose handler has called Conn.YieldInput waits in the same queue with its input.
//
// The queue contains Refs, because connections in it may begin to close.

const (
	// A connection becomes bulk when a read returns more than BulkReadSize bytes.
	BulkReadSize    = 16 << 10
	minBulkReadTime = maxTaskTime / 8
)

// QueueIfBulk queues c for another read if readBytes, the size of the last read, exceeds BulkReadSize. Call it after
// Conn.OnRead.
func (l *Loop) QueueIfBulk(c *engine.Conn, readBytes int) {
	if readBytes > BulkReadSize {
		l.QueueForLaterRead(c)
	}
}

func (l *Loop) QueueForLaterRead(c *engine.Conn) {
	if c.DriverFlags()&BulkQueued == 0 && !c.IsClosing() {
		c.SetDriverFlags(c.DriverFlags() | BulkQueued)
		l.bulkReads.PushBack(c.Ref())
	}
}

// IsReadQueued reports whether c is queued for a read. The driver must not watch a queued connection for input.
func (l *Loop) IsReadQueued(c *engine.Conn) bool {
	return c.DriverFlags()&BulkQueued != 0 && !c.IsClosing()
}

// readQueuedBulkConns reads once from each queued connection, for a limited time.
func (l *Loop) readQueuedBulkConns() {
	start := engine.MonotonicNow()
	end := start + max(min(start-l.turnStart, maxTaskTime), minBulkReadTime)
	for n := l.bulkReads.Len(); n > 0; n-- {
		c := l.bulkReads.PopFront().ConnIfOwnedBy(&l.host)
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
