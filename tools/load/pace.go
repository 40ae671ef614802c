package load

import (
	"math"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/tools/internal/pacer"
)

// This file decides when messages are sent. First, a message gets its planned time and becomes due. Later, the
// connection's owner takes the message (takeDueBatchLocked) and sends it. Functions with a shard as parameter run
// under the shard's lock, except nudgeDueConnsOfShard, which acquires the lock.

func (g *generator) canTakeAnotherMessage(cs *connState) bool {
	return int(cs.inFlight)+int(cs.due) < g.cfg.Pipeline && cs.flags&(connClosed|connExpired|connMismatched|connReconnecting) == 0
}

func (g *generator) markMessageDueLocked(s *shard, cs *connState, plannedAt time.Duration) {
	if g.table.plannedTimes != nil {
		g.table.plannedTimes[g.table.slotIndex(cs, cs.answered+uint64(cs.inFlight)+uint64(cs.due))] = plannedAt
	}
	cs.due++
	s.totals.run[nDue]++
}

// capAtQuotaAndWindowEndLocked returns how many of the wanted messages a connection may still send. The limit for all
// messages of a connection is Config.Messages. After the end of the window, the result is 0.
func (g *generator) capAtQuotaAndWindowEndLocked(cs *connState, wanted int, now time.Duration) (allowed int) {
	if int64(now) >= g.windowEnd.Load() {
		return 0
	}
	if g.cfg.Messages > 0 {
		wanted = int(min(uint64(wanted), uint64(g.cfg.Messages)-cs.answered-uint64(cs.inFlight)-uint64(cs.due)))
	}
	return wanted
}

// scheduleNextMessagesLocked marks the next messages of a connection as due, or sets timers for them. The caller calls
// it when the traffic of the connection starts and when answers arrive. It has no effect in a flood.
func (g *generator) scheduleNextMessagesLocked(s *shard, cs *connState, newAnswers int, now time.Duration) {
	begins := cs.flags&connPastFirst == 0
	cs.flags |= connPastFirst
	switch {
	case g.isOpenLoop():
		if begins && g.mode == openLoopPerConn {
			g.startConnPlanStaggeredLocked(cs, now)
		}
		g.markDueAndQueueNextLocked(s, cs, now)
	case g.mode != closedLoop:
	case begins:
		for range g.capAtQuotaAndWindowEndLocked(cs, g.cfg.Pipeline, now) {
			g.markMessageDueLocked(s, cs, now)
		}
	default:
		g.scheduleAfterThinkTimeLocked(s, cs, newAnswers, now)
	}
}

func (g *generator) scheduleAfterThinkTimeLocked(s *shard, cs *connState, newAnswers int, now time.Duration) {
	at := now + g.cfg.Think
	for range g.capAtQuotaAndWindowEndLocked(cs, newAnswers, now) {
		if g.cfg.Lifetime > 0 && at >= g.table.openedAt[cs.index]+g.cfg.Lifetime && !g.cfg.reconnects() {
			break // by then the connection is closed, or reconnected with a new lifetime
		}
		if at > now {
			s.timers.push(timer{due: at, conn: cs.index, number: cs.number, kind: thinkTimer})
		} else {
			g.markMessageDueLocked(s, cs, now)
		}
	}
}

// markDueAndQueueNextLocked marks planned messages of a connection as due if their time has come. It marks at most as
// many as the connection may have in flight. If the connection may have more, it then waits for the next planned
// message; see queueForNextPlannedLocked.
func (g *generator) markDueAndQueueNextLocked(s *shard, cs *connState, now time.Duration) {
	for g.canTakeAnotherMessage(cs) {
		at, ok := g.takeDuePlanTimeLocked(s, cs, now)
		if !ok {
			break
		}
		g.markMessageDueLocked(s, cs, at)
	}
	g.queueForNextPlannedLocked(s, cs, now)
}

// takeDuePlanTimeLocked takes the next planned time from the shared plan, or from the connection's own plan. If the
// time has not come, ok is false. A message of a connection's own plan is also counted, in nPlanned or nEarly.
func (g *generator) takeDuePlanTimeLocked(s *shard, cs *connState, now time.Duration) (plannedAt time.Duration, ok bool) {
	if int64(now) >= g.planDeadline.Load() {
		return 0, false
	}
	if g.mode == openLoop {
		return g.sharedPlan.TakeNextIfDue(now)
	}
	p := &g.table.plans[cs.index]
	if plannedAt = p.Next(); plannedAt > now || plannedAt >= time.Duration(g.windowEnd.Load()) {
		return 0, false
	}
	if g.isPlannedInWindow(plannedAt) {
		s.totals.run[nPlanned]++
	} else {
		s.totals.run[nEarly]++
	}
	p.AdvanceToNextMessage(&g.curve, g.connSeed(cs))
	return plannedAt, true
}

// queueForNextPlannedLocked makes a connection wait for its next planned message. With a shared plan, the
// connection waits in the shard's queue of ready connections. With its own plan, it waits for a timer. If the
// connection may have no more messages in flight, queueForNextPlannedLocked does nothing.
func (g *generator) queueForNextPlannedLocked(s *shard, cs *connState, now time.Duration) {
	if !g.isOpenLoop() || cs.flags&connPastFirst == 0 || !g.canTakeAnotherMessage(cs) {
		return
	}
	if g.mode == openLoop {
		if cs.flags&connQueued == 0 {
			cs.flags |= connQueued
			s.ready.enqueue(cs.index)
		}
		return
	}
	next := g.table.plans[cs.index].Next()
	if next > 0 && next < time.Duration(g.windowEnd.Load()) && int64(now) < g.planDeadline.Load() {
		if cs.flags&connHasTimer == 0 {
			cs.flags |= connHasTimer
			s.timers.push(timer{due: next, conn: cs.index, number: cs.number, kind: planTimer})
		}
	}
}

func (g *generator) needsPaceTimer() bool {
	return g.isOpenLoop() || g.cfg.Lifetime > 0 || g.cfg.Think > 0
}

// maxNudgesPerPace limits the connections of a shard that are nudged (woken up) at once. paceInterval is the longest
// time until the next call of nudgeDueConnsOfLoop.
const (
	maxNudgesPerPace = 512
	paceInterval     = 10 * time.Millisecond
	// paceIntervalNoLoops replaces paceInterval in models without loops.
	paceIntervalNoLoops = time.Millisecond // short, because connections become ready on other goroutines
	// paceRetryDelay is the delay before a nudge to a full mailbox is repeated.
	paceRetryDelay = 100 * time.Microsecond
)

// nudgeDueConnsOfLoop implements engine.Scheduler. It nudges (wakes up) the connections of a loop that have due
// messages or due timers. In models without loops, loopOrAll is negative, and the connections of all shards are nudged.
// The caller must call it again at the time nextCall.
func (g *generator) nudgeDueConnsOfLoop(loopOrAll int, at time.Duration, nudge func(engine.Ref) bool) (nextCall time.Duration) {
	now, next := at-g.epoch, at-g.epoch+paceInterval
	if loopOrAll >= 0 {
		return min(next, g.nudgeDueConnsOfShard(g.shards[loopOrAll], now, nudge)) + g.epoch
	}
	next = now + paceIntervalNoLoops
	if due := g.sharedPlan.NextDue(); due > now {
		next = min(next, due) // by then a connection may be ready
	}
	for _, s := range g.shards {
		next = min(next, g.nudgeDueConnsOfShard(s, now, nudge))
	}
	return next + g.epoch
}

// nudgeDueConnsOfShard nudges the connections of a shard that have due messages or due timers. If a nudge fails,
// nudgeDueConnsOfShard stops and keeps the remaining connections for its next call. The caller must call it again at
// the time nextCall.
func (g *generator) nudgeDueConnsOfShard(s *shard, now time.Duration, nudge func(engine.Ref) bool) (nextCall time.Duration) {
	s.mu.Lock()
	if len(s.nudgeRetries) == 0 && s.timers.earliestOrNever() > now && (s.ready.n == 0 || g.sharedPlan.NextDue() > now) {
		next := g.earliestTimerOrPlanDueLocked(s)
		s.mu.Unlock()
		return next
	}
	nudges := append(s.nudges[:0], s.nudgeRetries...)
	s.nudgeRetries = s.nudgeRetries[:0]
	nudges = g.runDueTimersLocked(s, nudges, now)
	nudges = g.assignDueToReadyConnsLocked(s, nudges, now)
	s.mu.Unlock()
	full := false
	for i, ref := range nudges {
		if !nudge(ref) {
			s.nudgeRetries = append(s.nudgeRetries, nudges[i:]...)
			full = true
			break
		}
	}
	s.nudges = nudges[:0]
	if full {
		return now + paceRetryDelay
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return g.earliestTimerOrPlanDueLocked(s)
}

func (g *generator) earliestTimerOrPlanDueLocked(s *shard) time.Duration {
	next := s.timers.earliestOrNever()
	if s.ready.n > 0 {
		next = min(next, g.sharedPlan.NextDue())
	}
	return next
}

func appendUnlessNudgedLocked(nudges []engine.Ref, cs *connState) []engine.Ref {
	if cs.flags&connNudged != 0 {
		return nudges
	}
	cs.flags |= connNudged
	return append(nudges, cs.ref)
}

func (g *generator) runDueTimersLocked(s *shard, nudges []engine.Ref, now time.Duration) (extended []engine.Ref) {
	for len(nudges) < maxNudgesPerPace {
		timer, ok := s.timers.popDue(now)
		if !ok {
			break
		}
		cs := &g.table.conns[timer.conn]
		if cs.number != timer.number || cs.flags&connClosed != 0 {
			continue
		}
		switch timer.kind {
		case thinkTimer:
			for range min(g.capAtQuotaAndWindowEndLocked(cs, 1, now), 1) {
				g.markMessageDueLocked(s, cs, now)
			}
		case planTimer:
			cs.flags &^= connHasTimer
			g.markDueAndQueueNextLocked(s, cs, now)
		case lifetimeTimer:
			timer.due = g.table.openedAt[cs.index] + g.cfg.Lifetime // later if the socket has been replaced
			if cs.flags&connReconnecting != 0 {
				timer.due = now + g.cfg.Lifetime
			}
			if timer.due > now {
				s.timers.push(timer)
				continue
			}
			cs.flags |= connExpired
		}
		nudges = appendUnlessNudgedLocked(nudges, cs)
	}
	return nudges
}

// assignDueToReadyConnsLocked assigns due messages of the shared plan to connections that are ready to send. It
// returns nudges, extended by these connections.
func (g *generator) assignDueToReadyConnsLocked(s *shard, nudges []engine.Ref, now time.Duration) (extended []engine.Ref) {
	for len(nudges) < maxNudgesPerPace && s.ready.n > 0 {
		if g.sharedPlan.NextDue() > now {
			break
		}
		id, _ := s.ready.dequeue()
		cs := &g.table.conns[id]
		cs.flags &^= connQueued
		if !g.canTakeAnotherMessage(cs) || cs.flags&connStarted == 0 {
			continue
		}
		at, ok := g.takeDuePlanTimeLocked(s, cs, now)
		if !ok {
			cs.flags |= connQueued
			s.ready.enqueue(id)
			break
		}
		g.markMessageDueLocked(s, cs, at)
		if g.canTakeAnotherMessage(cs) {
			cs.flags |= connQueued
			s.ready.enqueue(id)
		}
		nudges = appendUnlessNudgedLocked(nudges, cs)
	}
	return nudges
}

// recordOpenLoopLatenessLocked records how late the due messages of a connection are sent, compared with their planned
// times. Messages that were not planned for the window are ignored.
func (g *generator) recordOpenLoopLatenessLocked(s *shard, cs *connState, now time.Duration) {
	if !g.isOpenLoop() {
		return
	}
	for k := range uint64(cs.due) {
		if at := g.table.plannedTimes[g.table.slotIndex(cs, cs.answered+uint64(cs.inFlight)+k)]; g.isPlannedInWindow(at) {
			s.times.late.record(now-at, 1)
		}
	}
}

func (g *generator) sendDueOrCloseExpired(c *engine.Conn, cs *connState) {
	s, now := g.shards[cs.shard], g.now()
	s.mu.Lock()
	cs.flags &^= connNudged
	if cs.flags&connExpired != 0 {
		s.mu.Unlock()
		g.closeOrResetAsConfigured(c, errLifetimeOver)
		return
	}
	g.recordOpenLoopLatenessLocked(s, cs, now)
	p := g.takeDueBatchLocked(s, cs, now)
	s.mu.Unlock()
	g.sendOrPublishBatch(c, cs, p)
	if g.mode == flooding {
		g.sendFloodBatches(c, cs)
	}
}

func (g *generator) closeOrResetAsConfigured(c *engine.Conn, reason error) {
	if g.cfg.Graceful {
		c.CloseWith(reason)
	} else {
		c.Abort(reason)
	}
}

func (g *generator) skipPlanAndCountUnsentLocked(s *shard, cs *connState) {
	if !g.isOpenLoop() {
		return
	}
	for k := uint64(cs.resend); k < uint64(cs.due); k++ {
		if g.isPlannedInWindow(g.table.plannedTimes[g.table.slotIndex(cs, cs.answered+uint64(cs.inFlight)+k)]) {
			s.totals.run[nUnsent]++
		}
	}
	if g.mode == openLoopPerConn {
		draws := skipDraws
		skipped := g.skipConnPlanUntil(cs, min(g.now()+1, time.Duration(g.windowEnd.Load())), &draws)
		s.totals.run[nPlanned] += skipped.Within
		s.totals.run[nEarly] += skipped.Before
		s.totals.run[nUnsent] += skipped.Within
		g.table.plans[cs.index] = pacer.SendPlan{}
	}
}

// startConnPlanStaggeredLocked starts the message plan of one connection. The first message has a delay that depends on
// the number of the connection. These delays are spread evenly, so that not all connections send at the same time.
func (g *generator) startConnPlanStaggeredLocked(cs *connState, now time.Duration) {
	const golden = 0.6180339887498949 // its multiples modulo 1 are evenly distributed
	since := g.table.openedAt[cs.index]
	if g.script.hasFirst {
		since = now
	}
	_, phase := math.Modf(golden * float64(cs.number))
	g.table.plans[cs.index] = g.curve.NewPlanFrom(since, phase, g.connSeed(cs))
}

func (g *generator) connSeed(cs *connState) uint64 { return deriveSeed(g.cfg.Seed, uint64(cs.number)) }

// Limits for counting unsent messages with random planned times. Exact counting draws one random time for each message.
// After skipDraws random times for a connection or skipDrawsAll in total, the number of the remaining messages is
// estimated.
const (
	skipDraws    = 64
	skipDrawsAll = 100_000
)

func (g *generator) skipConnPlanUntil(cs *connState, end time.Duration, randomDrawsLeft *int) pacer.CountsBeforeAndInWindow {
	return g.table.plans[cs.index].SkipDueBefore(&g.curve, g.connSeed(cs), time.Duration(g.windowStart.Load()), end, randomDrawsLeft)
}

// forEachOpenConnPlanUnderLock calls the function visit for each open connection, with its plan. If visit returns
// false, no further connections are visited. During each call, the shard's lock is held.
func (g *generator) forEachOpenConnPlanUnderLock(visit func(*connState, *pacer.SendPlan) (goOn bool)) {
	g.table.forEachOpenOrClosedConnUnderLock(g.shards, func(_ *shard, cs *connState) bool {
		return cs.flags&connClosed != 0 || visit(cs, &g.table.plans[cs.index])
	})
}

// skipAndCountUntakenMessages drops all planned messages that no connection has taken, and returns their numbers.
// Afterwards, no messages may be sent.
func (g *generator) skipAndCountUntakenMessages() (all pacer.CountsBeforeAndInWindow) {
	until := time.Duration(g.windowEnd.Load())
	if g.mode == openLoop {
		return g.sharedPlan.SkipDueBefore(until, skipDrawsAll)
	}
	left := skipDrawsAll
	g.forEachOpenConnPlanUnderLock(func(cs *connState, _ *pacer.SendPlan) bool {
		draws := min(skipDraws, left)
		left -= draws
		skipped := g.skipConnPlanUntil(cs, until, &draws)
		left += draws
		all.Within += skipped.Within
		all.Before += skipped.Before
		return true
	})
	return all
}

func (g *generator) estimateDueUntakenMessages(now time.Duration) (n int64) {
	if g.mode == openLoop {
		return g.sharedPlan.CountDueAndUntaken(now)
	}
	until := time.Duration(g.windowEnd.Load())
	g.forEachOpenConnPlanUnderLock(func(_ *connState, p *pacer.SendPlan) bool {
		n += p.CountDueAndUntaken(&g.curve, now, until)
		return true
	})
	return n
}

func (g *generator) hasUntakenMessagePlannedInWindow() (is bool) {
	if g.mode == openLoop {
		return g.sharedPlan.NextDue() < pacer.Never
	}
	until := time.Duration(g.windowEnd.Load())
	g.forEachOpenConnPlanUnderLock(func(_ *connState, p *pacer.SendPlan) bool {
		is = p.Next() > 0 && p.Next() < until
		return !is
	})
	return is
}

// Limits of a flood. Each connection has a buffer for unsent bytes. The buffers of all connections together have
// floodBufferTotal bytes, in equal parts. However, a buffer has at least minFloodBuffer and at most maxFloodBuffer
// bytes.
const (
	maxFloodBuffer   = 64 << 10
	minFloodBuffer   = 4 << 10
	floodBufferTotal = 128 << 20
	floodBatches     = 4 // batches per loop iteration
)

func (c *Config) floodBufferSize() int {
	return min(max(floodBufferTotal/c.maxSimultaneousConns(), minFloodBuffer), maxFloodBuffer)
}

// Drained is called when the kernel has accepted all unsent bytes of a connection. In a flood, it sends more.
func (g *generator) Drained(c *engine.Conn) {
	if cs, ok := c.Value().(*connState); ok && g.mode == flooding && g.hasAnyFlag(cs, connStarted) {
		g.sendFloodBatches(c, cs)
	}
}

// sendFloodBatches sends up to floodBatches batches of messages. It stops earlier if the connection has more unsent
// bytes than its buffer should hold.
func (g *generator) sendFloodBatches(c *engine.Conn, cs *connState) {
	s := g.shards[cs.shard]
	bufferSize := g.cfg.floodBufferSize()
	n := max(bufferSize/g.script.maxMessageLen(), 1)
	for range floodBatches {
		if c.UnsentAndDroppedBytes() > bufferSize {
			break
		}
		now := g.now()
		s.mu.Lock()
		if g.capAtQuotaAndWindowEndLocked(cs, 1, now) == 0 {
			s.mu.Unlock()
			return
		}
		p := batch{from: cs.answered, n: g.capAtQuotaAndWindowEndLocked(cs, n, now), measured: g.isInWindow(now)}
		cs.answered += uint64(p.n)
		s.totals.addToRunAndWindow(nSent, int64(p.n), p.measured)
		s.totals.addToRunAndWindow(nBytesSent, int64(p.n*g.script.fixedSize), p.measured)
		s.mu.Unlock()
		g.sendOrPublishBatch(c, cs, p)
		if c.IsAborted() {
			return
		}
	}
	c.IsPaused() // pauses above the high-water mark, so that Drained is called once the output is sent
}
