package loop

import (
	"math/bits"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file is the bound of all buffers together. Each loop counts its own. When
// all hold more than Limits.MaxBuffered, those loops that hold more than an even
// share of it, of which there is at least one, close the connections with the largest
// buffers until an eighth of the bound is free. So a loop looks at the others only when it is
// above its share. They are told apart by the power of two of the bytes that
// wait, so that none has to be sorted: not by the room of their buffers, because one with
// little to send may have been given a large one. No connection is closed that holds less than the
// average: the large ones may be with workers, and are found when they are back. Only the mail
// that waits for such is dropped before, and then they are closed.

// When a walk through all connections has found too few that could be closed, the next one
// comes after retryEvery, or when the buffers have grown by another eighth of the bound: mail
// that was in no connection's buffers at the time may be in them by then.
const retryEvery = 50 * time.Millisecond

// budget closes connections when buffers hold too much.
type budget struct {
	loop    *Loop
	over    bool          // buffers held too much at the last look
	triedAt time.Duration // when too few could be closed; 0 if enough could
	heldAt  int64         // what all buffers held then
}

func (b *budget) next() (at time.Duration, ok bool) { return b.triedAt + retryEvery, b.over }

// run closes the connections with the largest buffers, if all buffers together
// hold too much.
func (b *budget) run(now time.Duration) {
	l := b.loop
	if !b.over && l.counters.Get(engine.Buffered) <= l.group.evenShare {
		return
	}
	most := int64(l.group.cfg.Limits.MaxBuffered)
	held := l.group.buffered()
	if b.over = held > most; !b.over || now-b.triedAt < retryEvery && held-b.heldAt < most/8 {
		return
	}
	excess := min(held-most*7/8, l.counters.Get(engine.Buffered)-l.group.evenShare*7/8)
	if b.over = excess > 0; !b.over {
		return // it is for others to give way
	}
	var classes [64]int64 // what those of each size class hold
	l.eachWithBuffers(func(c *engine.Conn, n int) {
		if c.DriverFlags()&Busy == 0 && c.IsAborted() {
			excess -= int64(n) // soon
		} else {
			classes[l.sizeClass(c)] += int64(n)
		}
	})
	from, sum := len(classes)-1, int64(0)
	for ; from > 0 && sum+classes[from] < excess; from-- {
		sum += classes[from]
	}
	l.closeLargest(from+1, &excess)
	for ; from >= 0 && excess > 0; from-- { // those with much room may have little waiting
		if classes[from] > 0 {
			l.closeLargest(from, &excess)
		}
	}
	if b.triedAt, b.heldAt = 0, 0; excess > 0 {
		b.triedAt, b.heldAt = now, held
	}
}

// closeLargest closes connections from a size class on, until the excess is gone.
func (l *Loop) closeLargest(from int, excess *int64) {
	noOnes := int64(l.box.CountedMemory() + l.post.held) // mail that is in no connection's buffers yet
	average := (l.counters.Get(engine.Buffered) - noOnes) / int64(max(l.slab.used, 1))
	l.eachWithBuffers(func(c *engine.Conn, n int) {
		busy, least := c.DriverFlags()&Busy != 0, average
		if busy {
			least /= 2 // it has more than is known here
		}
		switch {
		case *excess <= 0 || !busy && c.IsAborted() || l.sizeClass(c) < from || int64(n) < least:
		case busy:
			*excess -= int64(n)
			l.dropQueued(c)
		default:
			*excess -= int64(n)
			c.Abort(engine.ErrOverBudget)
			l.driver.Settle(c)
		}
	})
}

// sizeClass is the power of two of the bytes that a connection has waiting.
func (l *Loop) sizeClass(c *engine.Conn) int {
	if c.DriverFlags()&Busy != 0 {
		return bits.Len(uint(l.queued(c)))
	}
	return bits.Len(uint(c.BufferedBytes()))
}

// eachWithBuffers calls f for every connection that holds something here: of a busy one
// that is the mail that is kept for it.
func (l *Loop) eachWithBuffers(f func(c *engine.Conn, n int)) {
	l.Each(func(c *engine.Conn) {
		n := 0
		if c.DriverFlags()&Busy != 0 {
			n = l.queued(c)
		} else if c.IsOpen() {
			n = c.BufferMemory()
		}
		if n > 0 {
			f(c, n)
		}
	})
}

// buffered is what the buffers of all loops hold.
func (g *group) buffered() (sum int64) {
	sum = g.shared.Get(engine.Buffered)
	for _, l := range g.loops {
		sum += l.counters.Get(engine.Buffered)
	}
	return sum
}
