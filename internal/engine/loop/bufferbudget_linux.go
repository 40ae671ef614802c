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
// comes after budgetRetryInterval, or when the buffers have grown by another eighth of the bound: mail
// that was in no connection's buffers at the time may be in them by then.
const budgetRetryInterval = 50 * time.Millisecond

// bufferBudget closes connections when buffers hold too much.
type bufferBudget struct {
	loop          *Loop
	exceeded      bool          // buffers held too much at the last look
	failedAt      time.Duration // when too few could be closed; 0 if enough could
	heldAtFailure int64         // what all buffers held then
}

func (b *bufferBudget) nextDue() (at time.Duration, ok bool) {
	return b.failedAt + budgetRetryInterval, b.exceeded
}

// runIfDue closes the connections with the largest buffers, if all buffers together
// hold too much.
func (b *bufferBudget) runIfDue(now time.Duration) {
	l := b.loop
	if !b.exceeded && l.counters.Get(engine.Buffered) <= l.engine.bufferShare {
		return
	}
	limit := int64(l.engine.cfg.Limits.MaxBuffered)
	held := l.engine.bufferedBytes()
	if b.exceeded = held > limit; !b.exceeded || now-b.failedAt < budgetRetryInterval && held-b.heldAtFailure < limit/8 {
		return
	}
	excess := min(held-limit*7/8, l.counters.Get(engine.Buffered)-l.engine.bufferShare*7/8)
	if b.exceeded = excess > 0; !b.exceeded {
		return // it is for others to give way
	}
	var classes [64]int64 // what those of each size class hold
	l.forEachWithBuffers(func(c *engine.Conn, n int) {
		if c.Armed()&Busy == 0 && c.Aborted() {
			excess -= int64(n) // soon
		} else {
			classes[l.waitingSizeClass(c)] += int64(n)
		}
	})
	class, sum := len(classes)-1, int64(0)
	for ; class > 0 && sum+classes[class] < excess; class-- {
		sum += classes[class]
	}
	l.closeLargest(class+1, &excess)
	for ; class >= 0 && excess > 0; class-- { // those with much room may have little waiting
		if classes[class] > 0 {
			l.closeLargest(class, &excess)
		}
	}
	if b.failedAt, b.heldAtFailure = 0, 0; excess > 0 {
		b.failedAt, b.heldAtFailure = now, held
	}
}

// closeLargest closes connections from a size class on, until the excess is gone.
func (l *Loop) closeLargest(minClass int, excess *int64) {
	unassigned := int64(l.mailbox.Memory() + l.mailQueues.queueMemory) // mail that is in no connection's buffers yet
	average := (l.counters.Get(engine.Buffered) - unassigned) / int64(max(l.conns.used, 1))
	l.forEachWithBuffers(func(c *engine.Conn, n int) {
		busy, minBytes := c.Armed()&Busy != 0, average
		if busy {
			minBytes /= 2 // it has more than is known here
		}
		switch {
		case *excess <= 0 || !busy && c.Aborted() || l.waitingSizeClass(c) < minClass || int64(n) < minBytes:
		case busy:
			*excess -= int64(n)
			l.dropDeferredMailAndClose(c)
		default:
			*excess -= int64(n)
			c.Abort(engine.ErrOverBudget)
			l.driver.PerformActions(c)
		}
	})
}

// waitingSizeClass is the power of two of the bytes that a connection has waiting.
func (l *Loop) waitingSizeClass(c *engine.Conn) int {
	if c.Armed()&Busy != 0 {
		return bits.Len(uint(l.deferredMailBytes(c)))
	}
	return bits.Len(uint(c.Waiting()))
}

// forEachWithBuffers calls f for every connection that holds something here: of a busy one
// that is the mail that is kept for it.
func (l *Loop) forEachWithBuffers(visit func(c *engine.Conn, n int)) {
	l.ForEachConn(func(c *engine.Conn) {
		n := 0
		if c.Armed()&Busy != 0 {
			n = l.deferredMailBytes(c)
		} else if c.IsOpen() {
			n = c.Holds()
		}
		if n > 0 {
			visit(c, n)
		}
	})
}

// bufferedBytes is what the buffers of all loops hold.
func (e *loopEngine) bufferedBytes() (sum int64) {
	sum = e.sharedCounters.Get(engine.Buffered)
	for _, l := range e.loops {
		sum += l.counters.Get(engine.Buffered)
	}
	return sum
}
