package loop

import "github.com/myriad-go/myriad/internal/engine"

// This file keeps connections that send much from delaying the others. One whose
// read has brought more than BulkRead bytes is bulk: its driver does not look for
// its input any more. It waits in a queue, round robin, and each turn reads from
// the queue when the events at hand have been handled, for as long as those have
// taken, but no longer than a slice. A read that brings less ends that. So what a
// flood costs the others is half of the time at most, and a slice in each turn,
// however many connections flood: sparse flows go first, as in FQ-CoDel (RFC 8290).
//
// A connection whose handler has yielded (Conn.Yield) waits there with the input that it has.
//
// The queue names connections by their Refs, so that one that has begun to close
// is passed over. Its driver clears its bit: see ReadQueued.

const (
	// BulkRead is the most that a read brings of a connection that is not bulk.
	BulkRead = 16 << 10
	// leastSlice is how long a turn may read from bulk connections at least.
	leastSlice = slice / 8
)

// NoteRead tells the loop how much a read has brought. Drivers call it after
// Arrived.
func (l *Loop) NoteRead(c *engine.Conn, n int) {
	if n > BulkRead {
		l.QueueYielded(c)
	}
}

// QueueYielded implements engine.Loop: the loop reads from the connection.
func (l *Loop) QueueYielded(c *engine.Conn) {
	if c.DriverFlags()&Bulk == 0 && !c.IsClosing() {
		c.SetDriverFlags(c.DriverFlags() | Bulk)
		l.bulk.pushBack(c.Ref())
	}
}

// ReadQueued says whether the connection waits for the loop to read from it, so that
// its driver is not to look for input. One that is closing does not.
func (l *Loop) ReadQueued(c *engine.Conn) bool {
	if c.DriverFlags()&Bulk != 0 && c.IsClosing() {
		c.SetDriverFlags(c.DriverFlags() &^ Bulk)
	}
	return c.DriverFlags()&Bulk != 0
}

// readBulk reads from bulk connections, once each, until the slice is over. One
// that is with a worker, or is not to be read from, is watched again when that
// has ended.
func (l *Loop) readBulk() {
	now := engine.MonotonicNow()
	end := now + max(min(now-l.began, slice), leastSlice)
	for n := l.bulk.n; n > 0; n-- {
		c := l.bulk.front().ConnOwnedBy(&l.host)
		l.bulk.popFront()
		if c == nil {
			continue
		}
		c.SetDriverFlags(c.DriverFlags() &^ Bulk)
		if c.DriverFlags()&Busy != 0 {
			continue
		}
		if c.ClearYield(); c.WantsInput() {
			l.readOnce(c)
		}
		l.driver.Settle(c)
		if engine.MonotonicNow() >= end {
			return
		}
	}
}
