package load

import (
	"math"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/tools/internal/pacer"
)

// This file decides when messages are sent. All of it but pour runs under the
// shard's lock; a message that is to be sent is claimed: it gets its time, and
// counts as due until the connection's owner takes it (traffic.sending).

// hasCapacity says whether a connection may have one more message in flight.
func (g *generator) hasCapacity(cs *connState) bool {
	return int(cs.inFlight)+int(cs.due) < g.cfg.Pipeline && cs.flags&(connClosed|connExpired|connMismatched|connReconnecting) == 0
}

// assignMessage has a connection send one more message, which was to be sent at the given time.
func (g *generator) assignMessage(s *shard, cs *connState, plannedAt time.Duration) {
	if g.table.plannedTimes != nil {
		g.table.plannedTimes[g.table.slotIndex(cs, cs.answered+uint64(cs.inFlight)+uint64(cs.due))] = plannedAt
	}
	cs.due++
	s.totals.run[nDue]++
}

// sendableMessages is how many of n messages a connection may send now.
func (g *generator) sendableMessages(cs *connState, n int, now time.Duration) int {
	if int64(now) >= g.windowEnd.Load() {
		return 0
	}
	if g.cfg.Messages > 0 {
		n = int(min(uint64(n), uint64(g.cfg.Messages)-cs.answered-uint64(cs.inFlight)-uint64(cs.due)))
	}
	return n
}

// assignMessages has a connection send what it may when answers have made room, or when its
// regular traffic begins.
func (g *generator) assignMessages(s *shard, cs *connState, answers int, now time.Duration) {
	begins := cs.flags&connPastFirst == 0
	cs.flags |= connPastFirst
	switch {
	case g.isOpenLoop():
		if begins && g.mode == openLoopPerConn {
			g.startConnPlan(cs, now)
		}
		g.assignPlannedMessages(s, cs, now)
	case g.mode != closedLoop:
	case begins:
		for range g.sendableMessages(cs, g.cfg.Pipeline, now) {
			g.assignMessage(s, cs, now)
		}
	default:
		g.continueClosedLoop(s, cs, answers, now)
	}
}

// continueClosedLoop is a closed loop: a message for each answer, at once or after the think time.
func (g *generator) continueClosedLoop(s *shard, cs *connState, answers int, now time.Duration) {
	at := now + g.cfg.Think
	for range g.sendableMessages(cs, answers, now) {
		if g.cfg.Lifetime > 0 && at >= g.table.openedAt[cs.index]+g.cfg.Lifetime && !g.cfg.reconnects() {
			break // it won't be there; one that reconnects begins its lifetime again
		}
		if at > now {
			s.timers.push(timer{due: at, conn: cs.index, number: cs.number, kind: thinkTimer})
		} else {
			g.assignMessage(s, cs, now)
		}
	}
}

// assignPlannedMessages has a connection send what the plan has waiting, and then lets it wait for more.
func (g *generator) assignPlannedMessages(s *shard, cs *connState, now time.Duration) {
	for g.hasCapacity(cs) {
		at, ok := g.takePlannedTime(s, cs, now)
		if !ok {
			break
		}
		g.assignMessage(s, cs, at)
	}
	g.enqueueReady(s, cs, now)
}

// takePlannedTime takes the next message of the plan, the connection's own if it has one, unless it
// has been given up.
func (g *generator) takePlannedTime(s *shard, cs *connState, now time.Duration) (plannedAt time.Duration, ok bool) {
	if int64(now) >= g.planDeadline.Load() {
		return 0, false
	}
	if g.mode == openLoop {
		return g.sharedPlan.Take(now)
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
	p.Advance(&g.curve, g.connSeed(cs))
	return plannedAt, true
}

// enqueueReady lets a connection with room wait for the plan: in the queue of its shard, or
// for a timer.
func (g *generator) enqueueReady(s *shard, cs *connState, now time.Duration) {
	if !g.isOpenLoop() || cs.flags&connPastFirst == 0 || !g.hasCapacity(cs) {
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

// needsPacing says whether the run has times to wait for at all.
func (g *generator) needsPacing() bool {
	return g.isOpenLoop() || g.cfg.Lifetime > 0 || g.cfg.Think > 0
}

// The bounds of one call of the pacing: connections that are nudged in it, and how soon
// it wants to be called again, as what it waits for can change.
const (
	maxNudgesPerPace = 512
	paceInterval     = 10 * time.Millisecond
	// Where others than the pacing's goroutine change that, it looks more often.
	paceIntervalNoLoops = time.Millisecond
	// paceRetryDelay is when it tries again to call connections for which there was no room.
	paceRetryDelay = 100 * time.Microsecond
)

func (g *generator) paceLoop(loop int, at time.Duration, nudge func(engine.Ref) bool) time.Duration {
	now, next := at-g.epoch, at-g.epoch+paceInterval
	if loop >= 0 {
		return min(next, g.paceShard(g.shards[loop], now, nudge)) + g.epoch
	}
	next = now + paceIntervalNoLoops
	if due := g.sharedPlan.Due(); due > now {
		next = min(next, due) // a connection may be ready by then
	}
	for _, s := range g.shards {
		next = min(next, g.paceShard(s, now, nudge))
	}
	return next + g.epoch
}

// paceShard nudges the connections of a shard that have something to do, and says when
// it has to be called again.
func (g *generator) paceShard(s *shard, now time.Duration, nudge func(engine.Ref) bool) time.Duration {
	s.mu.Lock()
	if len(s.nudgeRetries) == 0 && s.timers.earliest() > now && (s.ready.n == 0 || g.sharedPlan.Due() > now) {
		next := g.nextPaceTime(s)
		s.mu.Unlock()
		return next
	}
	nudges := append(s.nudges[:0], s.nudgeRetries...)
	s.nudgeRetries = s.nudgeRetries[:0]
	nudges = g.handleDueTimers(s, nudges, now)
	nudges = g.assignToReadyConns(s, nudges, now)
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
	return g.nextPaceTime(s)
}

// nextPaceTime is when a shard's pacing has something to do.
func (g *generator) nextPaceTime(s *shard) time.Duration {
	next := s.timers.earliest()
	if s.ready.n > 0 {
		next = min(next, g.sharedPlan.Due())
	}
	return next
}

// appendNudge adds a connection to those that are nudged, once.
func appendNudge(nudges []engine.Ref, cs *connState) []engine.Ref {
	if cs.flags&connNudged != 0 {
		return nudges
	}
	cs.flags |= connNudged
	return append(nudges, cs.ref)
}

func (g *generator) handleDueTimers(s *shard, nudges []engine.Ref, now time.Duration) []engine.Ref {
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
			for range min(g.sendableMessages(cs, 1, now), 1) {
				g.assignMessage(s, cs, now)
			}
		case planTimer:
			cs.flags &^= connHasTimer
			g.assignPlannedMessages(s, cs, now)
		case lifetimeTimer:
			timer.due = g.table.openedAt[cs.index] + g.cfg.Lifetime // later, if it has been replaced
			if cs.flags&connReconnecting != 0 {
				timer.due = now + g.cfg.Lifetime
			}
			if timer.due > now {
				s.timers.push(timer)
				continue
			}
			cs.flags |= connExpired
		}
		nudges = appendNudge(nudges, cs)
	}
	return nudges
}

// assignToReadyConns gives messages of the plan of all to connections that have room, in turn.
func (g *generator) assignToReadyConns(s *shard, nudges []engine.Ref, now time.Duration) []engine.Ref {
	for len(nudges) < maxNudgesPerPace && s.ready.n > 0 {
		if g.sharedPlan.Due() > now {
			break
		}
		id, _ := s.ready.dequeue()
		cs := &g.table.conns[id]
		cs.flags &^= connQueued
		if !g.hasCapacity(cs) || cs.flags&connStarted == 0 {
			continue
		}
		at, ok := g.takePlannedTime(s, cs, now)
		if !ok {
			cs.flags |= connQueued
			s.ready.enqueue(id)
			break
		}
		g.assignMessage(s, cs, at)
		if g.hasCapacity(cs) {
			cs.flags |= connQueued
			s.ready.enqueue(id)
		}
		nudges = appendNudge(nudges, cs)
	}
	return nudges
}

// recordSendLateness records how late messages are sent that the pacing has claimed for a
// connection: it had room for them at their time.
func (g *generator) recordSendLateness(s *shard, cs *connState, now time.Duration) {
	if !g.isOpenLoop() {
		return
	}
	for k := range uint64(cs.due) {
		if at := g.table.plannedTimes[g.table.slotIndex(cs, cs.answered+uint64(cs.inFlight)+k)]; g.isPlannedInWindow(at) {
			s.times.late.record(now-at, 1)
		}
	}
}

// sendDueMessages does what the pacing has left a connection to do.
func (g *generator) sendDueMessages(c *engine.Conn, cs *connState) {
	s, now := g.shards[cs.shard], g.now()
	s.mu.Lock()
	cs.flags &^= connNudged
	if cs.flags&connExpired != 0 {
		s.mu.Unlock()
		g.disconnect(c, errLifetimeOver)
		return
	}
	g.recordSendLateness(s, cs, now)
	p := g.takeDueBatch(s, cs, now)
	s.mu.Unlock()
	g.sendBatch(c, cs, p)
	if g.mode == flooding {
		g.floodSend(c, cs)
	}
}

// disconnect closes a connection as Graceful says.
func (g *generator) disconnect(c *engine.Conn, reason error) {
	if g.cfg.Graceful {
		c.CloseWith(reason)
	} else {
		c.Abort(reason)
	}
}

// countUnsentOnClose counts what a connection was to send and did not before it closed.
func (g *generator) countUnsentOnClose(s *shard, cs *connState) {
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
		skipped := g.skipConnPlan(cs, min(g.now()+1, time.Duration(g.windowEnd.Load())), &draws)
		s.totals.run[nPlanned] += skipped.Within
		s.totals.run[nEarly] += skipped.Before
		s.totals.run[nUnsent] += skipped.Within
		g.table.plans[cs.index] = pacer.Plan{}
	}
}

// startConnPlan begins a connection's own plan: with the traffic or when the connection is
// established, whichever is later, or when its first message has been answered. The
// plans of connections are spread evenly.
func (g *generator) startConnPlan(cs *connState, now time.Duration) {
	const golden = 0.6180339887498949 // its multiples are spread evenly over 0 to 1
	since := g.table.openedAt[cs.index]
	if g.script.hasFirst {
		since = now
	}
	_, phase := math.Modf(golden * float64(cs.number))
	g.table.plans[cs.index] = g.curve.Start(since, phase, g.connSeed(cs))
}

func (g *generator) connSeed(cs *connState) uint64 { return deriveSeed(g.cfg.Seed, uint64(cs.number)) }

// The bounds of giving up random times: how many are drawn of one plan, and of all those
// of connections together; how many are behind them is estimated.
const (
	skipDraws    = 64
	skipDrawsAll = 100_000
)

// skipConnPlan gives up what a connection's own plan has before end.
func (g *generator) skipConnPlan(cs *connState, end time.Duration, draws *int) pacer.Skipped {
	return g.table.plans[cs.index].Skip(&g.curve, g.connSeed(cs), time.Duration(g.windowStart.Load()), end, draws)
}

// forEachConnPlan calls f for the own plans of connections that are still there, under their
// shards' locks, while it says so.
func (g *generator) forEachConnPlan(f func(*connState, *pacer.Plan) bool) {
	g.table.forEachConn(g.shards, func(_ *shard, cs *connState) bool {
		return cs.flags&connClosed != 0 || f(cs, &g.table.plans[cs.index])
	})
}

// skipUnsentPlans gives up the messages of plans that have not been sent, when nothing is sent
// any more, and counts them.
func (g *generator) skipUnsentPlans() (all pacer.Skipped) {
	until := time.Duration(g.windowEnd.Load())
	if g.mode == openLoop {
		return g.sharedPlan.Skip(until, skipDrawsAll)
	}
	left := skipDrawsAll
	g.forEachConnPlan(func(cs *connState, _ *pacer.Plan) bool {
		draws := min(skipDraws, left)
		left -= draws
		skipped := g.skipConnPlan(cs, until, &draws)
		left += draws
		all.Within += skipped.Within
		all.Before += skipped.Before
		return true
	})
	return all
}

// estimateOverdue estimates how many messages of plans are due and not taken.
func (g *generator) estimateOverdue(now time.Duration) (n int64) {
	if g.mode == openLoop {
		return g.sharedPlan.Waiting(now)
	}
	until := time.Duration(g.windowEnd.Load())
	g.forEachConnPlan(func(_ *connState, p *pacer.Plan) bool {
		n += p.Waiting(&g.curve, now, until)
		return true
	})
	return n
}

// hasOverdue says whether plans have something due that has not been sent.
func (g *generator) hasOverdue() (is bool) {
	if g.mode == openLoop {
		return g.sharedPlan.Due() < pacer.Never
	}
	until := time.Duration(g.windowEnd.Load())
	g.forEachConnPlan(func(_ *connState, p *pacer.Plan) bool {
		is = p.Next() > 0 && p.Next() < until
		return !is
	})
	return is
}

// This file has floods, too.

// The bounds of a flood: how much a connection is given at once, which is also what it
// may owe the kernel for more, and how often in one turn. Many connections are given
// less, so that all of them together have about floodBufferTotal.
const (
	maxFloodBuffer   = 64 << 10
	minFloodBuffer   = 4 << 10
	floodBufferTotal = 128 << 20
	floodBatches     = 4
)

func (c *Config) floodBufferSize() int {
	return min(max(floodBufferTotal/c.maxOpenConns(), minFloodBuffer), maxFloodBuffer)
}

// Drained goes on with a flood when the kernel has taken what it had.
func (g *generator) Drained(c *engine.Conn) {
	if cs, ok := c.Value().(*connState); ok && g.mode == flooding && g.hasFlags(cs, connStarted) {
		g.floodSend(c, cs)
	}
}

// floodSend sends until the kernel takes no more, or the turn is over. Drained comes then,
// or when the kernel has taken what is left, because Paused has been asked.
func (g *generator) floodSend(c *engine.Conn, cs *connState) {
	s := g.shards[cs.shard]
	bufferSize := g.cfg.floodBufferSize()
	n := max(bufferSize/g.script.maxMessageLen(), 1)
	for range floodBatches {
		if c.Pending() > bufferSize {
			break
		}
		now := g.now()
		s.mu.Lock()
		if g.sendableMessages(cs, 1, now) == 0 {
			s.mu.Unlock()
			return
		}
		p := batch{from: cs.answered, n: g.sendableMessages(cs, n, now), measured: g.isInWindow(now)}
		cs.answered += uint64(p.n)
		s.totals.addCount(nSent, int64(p.n), p.measured)
		s.totals.addCount(nBytesSent, int64(p.n*g.script.fixedSize), p.measured)
		s.mu.Unlock()
		g.sendBatch(c, cs, p)
		if c.Aborted() {
			return
		}
	}
	c.Paused()
}
