package engine

import "sync/atomic"

// Counters are what an owner counts. They only grow, except Open. Each loop
// has its own, so that counting touches no shared cache line.
type Counters struct {
	Open         atomic.Int64 // connections open now
	Accepted     atomic.Int64 // connections accepted, refused ones not counted
	Dialled      atomic.Int64 // connections made by Dial
	Refused      atomic.Int64 // accepted and closed at once: Limits.MaxConns
	AcceptErrors atomic.Int64 // accept failed, such as for want of descriptors
	Reads        atomic.Int64 // receive calls that brought bytes
	Writes       atomic.Int64 // send calls
	BytesIn      atomic.Int64
	BytesOut     atomic.Int64
	Panics       atomic.Int64 // panics in handlers
	Away         atomic.Int64 // 1 while workers call the handlers of this loop
	Moved        atomic.Int64 // how often auto has moved handlers onto workers
	_            [32]byte     // keeps the next loop's counters off this line
}

// Counts is a copy of Counters at one moment.
type Counts struct {
	Open, Accepted, Dialled, Refused, AcceptErrors int64
	Reads, Writes, BytesIn, BytesOut, Panics       int64
	Away, Moved                                    int64
}

// AddTo adds the counters to sum.
func (c *Counters) AddTo(sum *Counts) {
	sum.Open += c.Open.Load()
	sum.Accepted += c.Accepted.Load()
	sum.Dialled += c.Dialled.Load()
	sum.Refused += c.Refused.Load()
	sum.AcceptErrors += c.AcceptErrors.Load()
	sum.Reads += c.Reads.Load()
	sum.Writes += c.Writes.Load()
	sum.BytesIn += c.BytesIn.Load()
	sum.BytesOut += c.BytesOut.Load()
	sum.Panics += c.Panics.Load()
	sum.Away += c.Away.Load()
	sum.Moved += c.Moved.Load()
}
