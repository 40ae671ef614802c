package loop

import (
	"math/bits"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file limits the memory of all buffers together. Each loop counts its buffers. If the sum exceeds
// Limits.MaxBuffered, each loop above its even share closes the connections with the largest buffers until an eighth of
// the limit is free. At least one loop is then above its share, so a loop checks the others only when it is above its
// own share.
//
// Connections are classified by the power of two of their buffered bytes, which avoids sorting. The capacity of the
// buffers does not count, because a connection with little output may have got a large buffer. Connections below the
// average are not closed, because the large ones may be with workers. These are found when they return. Until then,
// only the mail that is deferred for them can be dropped.

// budgetRetryInterval is the time between two attempts to free enough buffer memory by closing connections.
const budgetRetryInterval = 50 * time.Millisecond

type bufferBudgetEnforcer struct {
	loop          *Loop
	exceeded      bool          // the limit was exceeded at the last check
	failedAt      time.Duration // when the last attempt could not free enough; 0 if it could
	heldAtFailure int64         // bytes of all buffers at failedAt
}

func (b *bufferBudgetEnforcer) nextDue() (at time.Duration, ok bool) {
	return b.failedAt + budgetRetryInterval, b.exceeded
}

func (b *bufferBudgetEnforcer) runIfDue(now time.Duration) {
	l := b.loop
	limit := l.host.TotalBufferLimit()
	share := limit / int64(len(l.engine.loops))
	if !b.exceeded && l.counters.Get(engine.Buffered) <= share {
		return
	}
	held := l.engine.totalBufferedBytes()
	if b.exceeded = held > limit; !b.exceeded || now-b.failedAt < budgetRetryInterval && held-b.heldAtFailure < limit/8 {
		return
	}
	excess := min(held-limit*7/8, l.counters.Get(engine.Buffered)-share*7/8)
	if b.exceeded = excess > 0; !b.exceeded {
		return // other loops must free memory
	}
	var classes [64]int64 // bytes held by each size class
	l.forEachConnWithBuffers(func(c *engine.Conn, n int) {
		if c.DriverFlags()&Busy == 0 && c.IsAborted() {
			excess -= int64(n) // these bytes will be free soon
		} else {
			classes[l.bufferedBytesSizeClass(c)] += int64(n)
		}
	})
	class, sum := len(classes)-1, int64(0)
	for ; class > 0 && sum+classes[class] < excess; class-- {
		sum += classes[class]
	}
	l.closeLargestConns(class+1, &excess)
	for ; class >= 0 && excess > 0; class-- { // continues with smaller classes until enough is free
		if classes[class] > 0 {
			l.closeLargestConns(class, &excess)
		}
	}
	if b.failedAt, b.heldAtFailure = 0, 0; excess > 0 {
		b.failedAt, b.heldAtFailure = now, held
	}
}

// closeLargestConns closes connections whose bufferedBytesSizeClass is at least minSizeClass. It spares connections
// with smaller buffers than the average connection. If a worker uses a connection, half the average applies. For each
// closed connection, closeLargestConns subtracts the size of the buffers from *excessBytes. It stops when *excessBytes
// is 0 or less.
func (l *Loop) closeLargestConns(minSizeClass int, excessBytes *int64) {
	unassigned := int64(l.mailbox.CountedMemory() + l.mailQueues.queueMemory) // mail that is in no connection's buffers yet
	average := (l.counters.Get(engine.Buffered) - unassigned) / int64(max(l.conns.used, 1))
	l.forEachConnWithBuffers(func(c *engine.Conn, n int) {
		busy, minBytes := c.DriverFlags()&Busy != 0, average
		if busy {
			minBytes /= 2 // the size of its own buffers is not known here
		}
		switch {
		case *excessBytes <= 0 || !busy && c.IsAborted() || l.bufferedBytesSizeClass(c) < minSizeClass || int64(n) < minBytes:
		case busy:
			*excessBytes -= int64(n)
			l.dropDeferredOutputAndAbortOnReturn(c)
		default:
			*excessBytes -= int64(n)
			c.Abort(engine.ErrOverBudget)
			l.driver.PerformActions(c)
		}
	})
}

// bufferedBytesSizeClass returns bits.Len of the number of bytes that are buffered for c. While a worker uses c, it
// returns bits.Len of the memory of the messages that are deferred for c.
func (l *Loop) bufferedBytesSizeClass(c *engine.Conn) int {
	if c.DriverFlags()&Busy != 0 {
		return bits.Len(uint(l.deferredMailMemory(c)))
	}
	return bits.Len(uint(c.BufferedBytes()))
}

// forEachConnWithBuffers calls visit for every connection with buffers. memoryBytes is the size of the connection's
// buffers. While a worker uses the connection, memoryBytes counts only deferred messages.
func (l *Loop) forEachConnWithBuffers(visit func(c *engine.Conn, memoryBytes int)) {
	l.ForEachConn(func(c *engine.Conn) {
		n := 0
		if c.DriverFlags()&Busy != 0 {
			n = l.deferredMailMemory(c)
		} else if c.IsOpen() {
			n = c.BufferMemory()
		}
		if n > 0 {
			visit(c, n)
		}
	})
}

func (e *loopEngine) totalBufferedBytes() (sum int64) {
	sum = e.sharedCounters.Get(engine.Buffered)
	for _, l := range e.loops {
		sum += l.counters.Get(engine.Buffered)
	}
	return sum
}
