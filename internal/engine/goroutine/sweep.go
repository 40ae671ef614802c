package goroutine

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file finds connections whose time has come, and the ones to close when all
// buffers together hold too much.

// stoppedThreshold is how late the sweeper is when the process has stood still, rather
// than had much to do.
const stoppedThreshold = time.Second

// runSweeper sweeps until the group has ended: while there are connections, one
// slice every engine.MinSlice, which also keeps the clock.
func (e *goroutineEngine) runSweeper() {
	period := e.host.SweepPeriod()
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for e.waitForSweepSlice(timer) {
		now := e.clock.advance(engine.MonotonicNow())
		e.host.SetClock(now)
		for _, c := range e.nextSweepConns(period) {
			if due := c.wakeAt.Load(); due != 0 && int32(toSweepTime(now)-due) >= 0 {
				c.wake()
			}
		}
		e.closeLargestConns()
		e.wakeBlockedSenders()
	}
}

// waitForSweepSlice waits for the next slice, and as long as there are no connections. It
// fails when the group stops and there are none.
func (e *goroutineEngine) waitForSweepSlice(timer *time.Timer) bool {
	if e.admission.OpenConns() == 0 {
		e.clock.suspendLimit()
		select {
		case <-e.connAdded:
		case <-e.stopCtx.Done():
		}
		if e.admission.OpenConns() == 0 && e.stopCtx.Err() != nil {
			return false
		}
	}
	e.clock.advance(engine.MonotonicNow())
	timer.Reset(engine.MinSliceInterval)
	select {
	case <-timer.C:
	case <-e.lastConnClosed:
	}
	return true
}

// pausableClock is the clock of all limits. It stands still when the process does, so that no peer is blamed
// for that. The sweeper finds out how long that was; a connection that goes on before the sweeper
// must not see a later time meanwhile, because what it has heard would count as heard in the
// future. So the clock has a limit until the sweeper has woken.
type pausableClock struct {
	stoppedFor  atomic.Int64  // for how long the process has stood still
	limit       atomic.Int64  // what the clock does not pass; 0 while there are no connections
	lastAdvance time.Duration // when the sweeper last looked, which alone uses it; 0 after a rest
}

// readAt is the time when Since is now.
func (k *pausableClock) readAt(now time.Duration) time.Duration {
	now -= time.Duration(k.stoppedFor.Load())
	if limit := time.Duration(k.limit.Load()); limit > 0 {
		return min(now, limit)
	}
	return now
}

// advance reads the clock for the sweeper, which looks before and after each wait of engine.MinSlice, so that a stop
// at any time is found. The limit allows for a sweeper that is late without a stop: a clock that stood still then
// would end limits early. After a stop, a peer that is heard before the sweeper wakes has up to standstill more.
func (k *pausableClock) advance(now time.Duration) time.Duration {
	if late := now - k.lastAdvance - engine.MinSliceInterval; k.lastAdvance > 0 && late >= stoppedThreshold {
		k.stoppedFor.Add(int64(late))
	}
	k.lastAdvance = now
	now -= time.Duration(k.stoppedFor.Load())
	k.limit.Store(int64(now + 2*engine.MinSliceInterval + stoppedThreshold))
	return now
}

// suspendLimit lets the clock go on without the sweeper: there are no connections.
func (k *pausableClock) suspendLimit() {
	k.limit.Store(0)
	k.lastAdvance = 0
}

// nextSweepConns is the connections of the next chunks of the table, as many as it takes to
// see all once in a period: a short one while some are about to end.
func (e *goroutineEngine) nextSweepConns(period time.Duration) []*conn {
	if e.expiringConns.Load() > 0 || period == 0 {
		period = engine.FastSweepPeriod
	}
	slices := int(period / engine.MinSliceInterval)
	e.mu.Lock()
	defer e.mu.Unlock()
	chunks := len(e.conns.chunks)
	from, to := e.nextSweepChunk, min(e.nextSweepChunk+(chunks+slices-1)/slices, chunks)
	if e.nextSweepChunk = to; to >= chunks {
		e.nextSweepChunk = 0
	}
	return e.conns.appendChunkConns(make([]*conn, 0, min(e.conns.used, (to-from)*chunkSize)), from, to)
}

// requestOverBudget says whether all buffers together hold too much, with so much more.
func (e *goroutineEngine) exceedsBudget(extraBytes int64) bool {
	limit := int64(e.cfg.Limits.MaxBuffered)
	return limit > 0 && e.counters.Get(engine.Buffered)+extraBytes > limit
}

// closeLargestConns has the connections with the largest buffers closed, if all buffers together
// hold too much, until an eighth of what they may hold is free. None goes that holds
// less than the average: what large ones hold may not be known yet. One goroutine at a
// time looks for them.
func (e *goroutineEngine) closeLargestConns() {
	if !e.exceedsBudget(0) || !e.closeLargestMu.TryLock() {
		return
	}
	defer e.closeLargestMu.Unlock()
	excess := e.counters.Get(engine.Buffered) - int64(e.cfg.Limits.MaxBuffered)*7/8
	e.mu.Lock()
	all := e.conns.allConns()
	e.mu.Unlock()
	type debtor struct {
		*conn
		holds int64
	}
	var largest []debtor
	for _, c := range all {
		if n := c.heldBytes(); n > 0 {
			largest = append(largest, debtor{c, n})
		}
	}
	slices.SortFunc(largest, func(a, b debtor) int { return cmp.Compare(b.holds, a.holds) })
	average := e.counters.Get(engine.Buffered) / max(e.admission.OpenConns(), 1)
	for _, d := range largest {
		if d.holds < average || excess <= 0 {
			return
		}
		excess -= d.holds
		d.requestAndWake(requestOverBudget)
	}
}

// heldBytes is how many bytes of memory the connection's buffers held when it last waited, and
// its mailbox holds. Anyone may ask.
func (c *conn) heldBytes() int64 {
	n := int64(c.bufferedBytes.Load())
	if box := c.mailboxPtr.Load(); box != nil {
		n += int64(box.CountedMemory())
	}
	return n
}

// senderQueue are those who wait until all buffers together hold no more than they may.
type senderQueue struct {
	hasWaiters atomic.Bool // some do
	mu         sync.Mutex
	freed      chan struct{} // closed when they may go on; nil if none waits
}

// refusesMail reports whether mail has no room because all buffers together hold too much: by a
// quarter, unless the sender can wait. One that can waits until they hold less.
func (e *goroutineEngine) refusesMail(request *engine.Request) bool {
	limit := int64(e.cfg.Limits.MaxBuffered)
	switch {
	case !request.CanWait():
		return e.exceedsBudget(-limit / 4)
	case !e.exceedsBudget(0):
		return false
	}
	s := &e.blockedSenders
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.freed == nil {
		s.freed = make(chan struct{})
	}
	s.hasWaiters.Store(true)
	request.SetSpaceWait(s.freed)
	return e.exceedsBudget(0)
}

// wakeBlockedSenders wakes those who wait, if there is room. The sweeper calls it, and a connection
// that has closed.
func (e *goroutineEngine) wakeBlockedSenders() {
	s := &e.blockedSenders
	if !s.hasWaiters.Load() || e.exceedsBudget(0) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.freed != nil {
		close(s.freed)
		s.freed = nil
	}
	s.hasWaiters.Store(false)
}

// toSweepTime is a time as due has it: in units of 2^24 ns, rounded up, never 0.
func toSweepTime(at time.Duration) uint32 { return uint32(at>>24) + 1 }
