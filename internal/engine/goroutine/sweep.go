package goroutine

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file finds connections with a due timeout, and closes some if all buffers together exceed their limit.

// stoppedThreshold is a delay of the sweeper. If the sweeper runs late by at least stoppedThreshold, it assumes that
// the whole process was stopped. Shorter delays are ignored.
const stoppedThreshold = time.Second

// runPeriodicChecks periodically checks timeouts and sends heartbeats, until the engine has ended. If all buffers
// together exceed their limit, it closes the connections with the largest buffers.
func (e *goroutineEngine) runPeriodicChecks() {
	period := e.host.SweepPeriod()
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for e.waitForConnsAndSweepTick(timer) {
		now := e.clock.advanceAndSetLimit(engine.MonotonicNow())
		e.host.SetClock(now)
		for _, c := range e.nextSweepConns(period) {
			if due := c.wakeAt.Load(); due != 0 && int32(toSweepTime(now)-due) >= 0 {
				c.wakeUnlessOnlyHeartbeatDue(now)
			}
		}
		e.sendDueHeartbeatsOfNextSlice(now)
		e.closeLargestConnsIfOverBudget()
		e.wakeBlockedSendersIfWithinBudget()
	}
}

func (c *conn) wakeUnlessOnlyHeartbeatDue(now time.Duration) {
	if c.claim() {
		c.releaseClaim(!c.IsOnlyHeartbeatDue(now))
	}
}

// sendDueHeartbeatsOfNextSlice sends heartbeats that are due. Each call checks only a part of the connections.
func (e *goroutineEngine) sendDueHeartbeatsOfNextSlice(now time.Duration) {
	if !e.heartbeats.IsActive() {
		return
	}
	for started := false; ; started = true {
		e.mu.Lock()
		chunks := len(e.conns.chunks)
		if !started {
			e.heartbeats.StartSlice(now, chunks)
		}
		chunk, ok := e.heartbeats.NextChunk(chunks)
		if ok {
			e.heartbeatConns = e.conns.appendChunkConns(e.heartbeatConns[:0], chunk, chunk+1)
		}
		e.mu.Unlock()
		if !ok {
			return
		}
		for _, c := range e.heartbeatConns {
			c.sendOrRequestDueHeartbeat(&e.heartbeats)
		}
		clear(e.heartbeatConns)
	}
}

func (c *conn) sendOrRequestDueHeartbeat(sweep *engine.HeartbeatSweep) {
	due := c.wakeAt.Load()
	if due == 0 || int32(toSweepTime(sweep.Horizon())-due) < 0 || !c.claim() {
		sweep.Skip()
		return
	}
	step := sweep.SendIfDue(&c.Conn)
	switch step {
	case engine.HeartbeatSent:
		c.publishSweepState()
	case engine.HeartbeatOwed:
		c.requests.Or(requestHeartbeat)
	}
	c.releaseClaim(step == engine.HeartbeatOwed || step == engine.HeartbeatUnsent)
}

// waitForConnsAndSweepTick waits until the engine has connections and it is time to sweep the next part of the
// connections. If the engine stops and has no connections, it returns false.
func (e *goroutineEngine) waitForConnsAndSweepTick(timer *time.Timer) (moreToSweep bool) {
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

// pausableClock is the clock that all time limits use. It does not advance while the whole process is stopped.
type pausableClock struct {
	stoppedFor  atomic.Int64  // how long the process was stopped in total
	limit       atomic.Int64  // the latest time that the clock shows; 0 means no limit, while there are no connections
	lastAdvance time.Duration // time of the last advanceAndSetLimit; used by the sweeper only; 0 without connections
}

// readAt converts now, a time of the monotonic clock, to the time that the pausableClock shows.
func (k *pausableClock) readAt(now time.Duration) time.Duration {
	now -= time.Duration(k.stoppedFor.Load())
	if limit := time.Duration(k.limit.Load()); limit > 0 {
		return min(now, limit)
	}
	return now
}

// advanceAndSetLimit returns the time that the clock shows when the monotonic clock shows now. If the previous call was
// so long ago that the process must have been stopped, advanceAndSetLimit first subtracts the time of the stop from the
// clock. It also sets an upper limit for the time that the clock shows until the next call. Only the sweeper may call
// advanceAndSetLimit.
func (k *pausableClock) advanceAndSetLimit(now time.Duration) time.Duration {
	if late := now - k.lastAdvance - engine.MinSliceInterval; k.lastAdvance > 0 && late >= stoppedThreshold {
		k.stoppedFor.Add(int64(late))
	}
	k.lastAdvance = now
	now -= time.Duration(k.stoppedFor.Load())
	k.limit.Store(int64(now + 2*engine.MinSliceInterval + stoppedThreshold))
	return now
}

// removeLimit removes the clock's upper limit. Only the sweeper may call removeLimit.
func (k *pausableClock) removeLimit() {
	k.limit.Store(0)
	k.lastAdvance = 0
}

// nextSweepConns returns the connections to sweep next. fullSweepPeriod is the time in which all connections are swept
// once. If fullSweepPeriod is 0, or if connections have a timer, deadline or expiry, FastSweepPeriod applies instead.
func (e *goroutineEngine) nextSweepConns(fullSweepPeriod time.Duration) []*conn {
	if e.expiringConns.Load() > 0 || fullSweepPeriod == 0 {
		fullSweepPeriod = engine.FastSweepPeriod
	}
	slices := int(fullSweepPeriod / engine.MinSliceInterval)
	e.mu.Lock()
	defer e.mu.Unlock()
	chunks := len(e.conns.chunks)
	from, to := e.nextSweepChunk, min(e.nextSweepChunk+(chunks+slices-1)/slices, chunks)
	if e.nextSweepChunk = to; to >= chunks {
		e.nextSweepChunk = 0
	}
	return e.conns.appendChunkConns(make([]*conn, 0, min(e.conns.used, (to-from)*chunkSize)), from, to)
}

func (e *goroutineEngine) buffersExceedBudget(extraBytes int64) bool {
	limit := e.host.TotalBufferLimit()
	return limit < math.MaxInt64 && e.counters.Get(engine.Buffered)+extraBytes > limit
}

func (e *goroutineEngine) closeLargestConnsIfOverBudget() {
	if !e.buffersExceedBudget(0) || !e.closeLargestMu.TryLock() {
		return
	}
	defer e.closeLargestMu.Unlock()
	excess := e.counters.Get(engine.Buffered) - e.host.TotalBufferLimit()*7/8
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

// bufferAndMailboxBytes returns the size of the connection's mailbox and buffers. It is safe for concurrent use.
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
	freed      chan struct{} // closed when senders may continue; nil if no sender waits
}

// refuseOrDelayMail reports whether to refuse a request because all buffers together exceed their limit. If the sender
// can wait, refuseOrDelayMail also makes the sender wait until there is memory. A sender that cannot wait would lose
// the message. Requests of such senders are therefore refused only above 125 % of the limit.
func (e *goroutineEngine) refuseOrDelayMail(request *engine.Request) (refused bool) {
	limit := int64(e.cfg.Limits.MaxBuffered)
	switch {
	case !request.CanWait():
		return e.buffersExceedBudget(-limit / 4)
	case !e.buffersExceedBudget(0):
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
	return e.buffersExceedBudget(0)
}

func (e *goroutineEngine) wakeBlockedSendersIfWithinBudget() {
	s := &e.blockedSenders
	if !s.hasWaiters.Load() || e.buffersExceedBudget(0) {
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

// toSweepTime converts a time to units of 2^24 ns, about 17 ms. It rounds down and adds 1, because 0 means no time.
func toSweepTime(at time.Duration) uint32 { return uint32(at>>24) + 1 }
