package loop

import "github.com/myriad-go/myriad/internal/engine"

// This file keeps connections that send much from delaying the others. One whose
// read has brought more than BulkReadSize bytes is bulk: its driver does not look for
// its input any more. It waits in a queue, round robin, and each turn reads from
// the queue when the events at hand have been handled, for as long as those have
// taken, but no longer than a slice. A read that brings less ends that. So what a
// flood costs the others is half of the time at most, and a slice in each turn,
// however many connections flood: sparse flows go first, as in FQ-CoDel (RFC 8290).
//
// A connection whose handler has yielded (Conn.Yield) waits there with the input that it has.
//
// The queue names connections by their Refs, so that one that has begun to close
// is passed over. Its driver clears its bit: see IsReadQueued.

const (
	// BulkReadSize is the most that a read brings of a connection that is not bulk.
	BulkReadSize = 16 << 10
	// minBulkReadTime is how long a turn may read from bulk connections at least.
	minBulkReadTime = maxTaskTime / 8
)

// QueueIfBulk tells the loop how much a read has brought. Drivers call it after
// Arrived.
func (l *Loop) QueueIfBulk(c *engine.Conn, readBytes int) {
	if readBytes > BulkReadSize {
		l.QueueRead(c)
	}
}

// QueueRead implements engine.Loop: the loop reads from the connection.
func (l *Loop) QueueRead(c *engine.Conn) {
	if c.Armed()&BulkQueued == 0 && !c.Closing() {
		c.SetArmed(c.Armed() | BulkQueued)
		l.bulkReads.pushBack(c.Ref())
	}
}

// IsReadQueued says whether the connection waits for the loop to read from it, so that
// its driver is not to look for input. One that is closing does not.
func (l *Loop) IsReadQueued(c *engine.Conn) bool {
	if c.Armed()&BulkQueued != 0 && c.Closing() {
		c.SetArmed(c.Armed() &^ BulkQueued)
	}
	return c.Armed()&BulkQueued != 0
}

// readBulkConns reads from bulk connections, once each, until the slice is over. One
// that is with a worker, or is not to be read from, is watched again when that
// has ended.
func (l *Loop) readBulkConns() {
	start := engine.Since()
	end := start + max(min(start-l.turnStart, maxTaskTime), minBulkReadTime)
	for n := l.bulkReads.n; n > 0; n-- {
		c := l.bulkReads.front().On(&l.host)
		l.bulkReads.popFront()
		if c == nil {
			continue
		}
		c.SetArmed(c.Armed() &^ BulkQueued)
		if c.Armed()&Busy != 0 {
			continue
		}
		if c.TakeTurn(); c.WantsInput() {
			l.readOrSplice(c)
		}
		l.driver.PerformActions(c)
		if engine.Since() >= end {
			return
		}
	}
}
