package goroutine

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file finds connections with a due timeout, and closes connections if all buffers together exceed their limit.

// stoppedThreshold is the minimum delay of the sweeper that indicates a stopped process rather than a busy one.
const stoppedThreshold = time.Second

// runSweeper sweeps until the engine has ended. While there are connections, it handles one slice every
// engine.MinSliceInterval and also advances the clock.
func (e *goroutineEngine) runSweeper() {
	period := e.host.SweepPeriod()
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for e.waitForSweepSlice(timer) {
		now := e.clock.advanceAndSetLimit(engine.MonotonicNow())
		e.host.SetClock(now)
		for _, c := range e.nextSweepConns(period) {
			if due := c.wakeAt.Load(); due != 0 && int32(toSweepTime(now)-due) >= 0 {
				c.wake()
			}
		}
		e.closeLargestConnsIfOverBudget()
		e.wakeBlockedSendersIfWithinBudget()
	}
}

// waitForSweepSlice waits for the next slice. While there are no connections, it keeps waiting. If the engine stops
// without connections, it returns false.
func (e *goroutineEngine) waitForSweepSlice(timer *time.Timer) (keepSweeping bool) {
	if e.admission.OpenConns() == 0 {
		e.clock.removeLimit()
		select {
		case <-e.connAdded:
		case <-e.stopCtx.Done():
		}
		if e.admission.OpenConns() == 0 && e.stopCtx.Err() != nil {
			return false
		}
	}
	e.clock.advanceAndSetLimit(engine.MonotonicNow())
	timer.Reset(engine.MinSliceInterval)
	select {
	case <-timer.C:
	case <-e.lastConnClosed:
	}
	return true
}

// pausableClock is the clock of all time limits. It pauses while the process is stopped, so that this time does not
// count against peers. The sweeper measures the stop. Until the sweeper runs, the clock has an upper limit. Otherwise,
// a connection that continues earlier could read too late a time, and its input would have a time in the future.
type pausableClock struct {
	stoppedFor  atomic.Int64  // how long the process was stopped in total
	limit       atomic.Int64  // the clock does not pass it; 0 while there are no connections
	lastAdvance time.Duration // of the sweeper, which alone uses it; 0 without connections
}

// readAt returns the clock's time for the monotonic time now.
func (k *pausableClock) readAt(now time.Duration) time.Duration {
	now -= time.Duration(k.stoppedFor.Load())
	if limit := time.Duration(k.limit.Load()); limit > 0 {
		return min(now, limit)
	}
	return now
}

// advanceAndSetLimit reads the clock for the sweeper and sets the next limit. The sweeper calls it before and after
// each wait of engine.MinSliceInterval, so that a stop at any time is detected. The limit tolerates a late sweeper
// without a stop; otherwise the clock would pause. After a stop, a peer with input before the sweeper wakes gains up
// to stoppedThreshold.
func (k *pausableClock) advanceAndSetLimit(now time.Duration) time.Duration {
	if late := now - k.lastAdvance - engine.MinSliceInterval; k.lastAdvance > 0 && late >= stoppedThreshold {
		k.stoppedFor.Add(int64(late))
	}
	k.lastAdvance = now
	now -= time.Duration(k.stoppedFor.Load())
	k.limit.Store(int64(now + 2*engine.MinSliceInterval + stoppedThreshold))
	return now
}

// removeLimit lets the clock run without the sweeper while there are no connections.
func (k *pausableClock) removeLimit() {
	k.limit.Store(0)
	k.lastAdvance = 0
}

// nextSweepConns returns the connections of the next chunks of the table. Their number is chosen so that one period
// covers all chunks. The period is short while some connections are about to expire.
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

// exceedsBudget reports whether extraBytes more would make all buffers together exceed their limit.
func (e *goroutineEngine) exceedsBudget(extraBytes int64) bool {
	limit := int64(e.cfg.Limits.MaxBuffered)
	return limit > 0 && e.counters.Get(engine.Buffered)+extraBytes > limit
}

// closeLargestConnsIfOverBudget closes the connections with the largest buffers if all buffers together exceed their
// limit, until an eighth of the limit is free. No connection is closed that holds less than the average: what
// large ones hold may not be known yet. Concurrent calls return at once.
func (e *goroutineEngine) closeLargestConnsIfOverBudget() {
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
		if n := c.bufferAndMailboxBytes(); n > 0 {
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

// bufferAndMailboxBytes returns the memory of the connection's buffers when it last waited, and of its mailbox. It is
// safe for concurrent use.
func (c *conn) bufferAndMailboxBytes() int64 {
	n := int64(c.bufferedBytes.Load())
	if box := c.mailboxPtr.Load(); box != nil {
		n += int64(box.CountedMemory())
	}
	return n
}

type senderQueue struct {
	hasWaiters atomic.Bool
	mu         sync.Mutex
	freed      chan struct{} // closed when senders may continue; nil if none waits
}

// refuseOrDelayMail reports whether mail is refused because buffers exceed their limit: by a quarter, unless
// the sender can wait. A sender that can waits until they hold less.
func (e *goroutineEngine) refuseOrDelayMail(request *engine.Request) (refused bool) {
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
	request.LetSenderWaitUntil(s.freed)
	return e.exceedsBudget(0)
}

// wakeBlockedSendersIfWithinBudget wakes waiting senders if buffers are within their limit. The sweeper calls it, and a
// connection that has closed.
func (e *goroutineEngine) wakeBlockedSendersIfWithinBudget() {
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

// toSweepTime converts a time to units of 2^24 ns, rounded up; it never returns 0.
func toSweepTime(at time.Duration) uint32 { return uint32(at>>24) + 1 }
