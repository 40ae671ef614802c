package load

import (
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/tools/internal/pacer"
)

// errEstablishedLate closes a connection that was established when nobody waited for it
// any more; errLifetimeOver one whose lifetime is over.
var (
	errEstablishedLate = errors.New("load: established after the connect phase")
	errLifetimeOver    = errors.New("load: its lifetime is over")
)

// generator is the handler of a run: what happens on a connection. Its fields do
// not change once connecting begins, but for those that are atomic or locked.
type generator struct {
	cfg          *Config
	script       *script
	mode         mode
	table        *connTable
	shards       []*shard
	shardPerLoop bool          // a shard for each loop
	epoch        time.Duration // the run's start, of the engine's clock
	startTime    time.Time     // the same, of the calendar

	pubsub      *pubsubRun   // nil where it is none
	reconnector *reconnector // nil where connections are not replaced

	sharedPlan *pacer.Shared // in an open loop for all connections together
	curve      pacer.Curve   // of plans, from begin on

	// windowStart and until are the window, since epoch. Nothing is sent from
	// until on, but what an open loop had planned before. begin is when the
	// traffic began, and going says that connections begin when they are
	// established.
	trafficStart, windowStart, windowEnd atomic.Int64
	trafficStarted                       atomic.Bool
	// nudgedConns is how many connections the starter is through with. It is the starter's while
	// that runs.
	nudgedConns int
	// planDeadline is when what an open loop has planned is given up.
	planDeadline atomic.Int64
	// closing says that connections close because the run is over.
	closing atomic.Bool

	// Of connections that are only held: the verification that is on, or was last,
	// and how far the loops are with it; when the broadcast first came.
	verifying  atomic.Pointer[verification]
	firstHeard atomic.Int64
	lineEnd    string // of lines; messages of a WebSocket have none
	broadcast  string

	nextNumber atomic.Uint32 // of connections: the next one
	faults     faultRecorder
}

// mode is what sends messages.
type mode uint8

const (
	closedLoop      mode = iota
	openLoop             // for all connections together
	openLoopPerConn      // for each
	flooding
	holding
)

// newGenerator makes a handler for an engine with that many loops, 0 for a model without.
func newGenerator(cfg *Config, loops int) (*generator, error) {
	t := &generator{cfg: cfg, mode: cfg.mode(), epoch: engine.Since(), startTime: time.Now(), sharedPlan: pacer.NewShared()}
	t.setWindow(pacer.Never, math.MinInt64)
	if cfg.Unprompted { // the server does not wait until all are connected
		t.setWindow(pacer.Never, pacer.Never)
	}
	t.shardPerLoop = loops > 0
	t.shards = make([]*shard, loops)
	if !t.shardPerLoop {
		t.shards = make([]*shard, goroutineShards)
	}
	for i := range t.shards {
		s := &shard{times: newTimeDistributions(t.mode == holding)}
		s.unheard, s.heard = heldConn{shard: s}, heldConn{shard: s, heard: true}
		if cfg.Check > 0 {
			s.heldConns = make([]engine.Ref, 0, cfg.Connections/len(t.shards)+connChunk)
		}
		t.shards[i] = s
	}
	places := cfg.connsWithState()
	if t.isHoldOnly() {
		places = 0
	}
	t.table = newConnTable(places, cfg.Pipeline, len(t.shards))
	var err error
	if t.script, err = newScript(cfg, t.table, t.faults.recordStatus); err != nil {
		return nil, err
	}
	if cfg.PubSub == nil {
		t.nextNumber.Store(uint32(cfg.NumberFrom))
	} else {
		t.pubsub = newPubSub(t)
		t.script.answerChecker = t.pubsub
	}
	t.table.allocForMode(t)
	t.lineEnd, t.broadcast = "\n", cfg.Broadcast
	if t.script.frames != nil {
		t.lineEnd, t.broadcast = "", strings.TrimSuffix(cfg.Broadcast, "\n")
	}
	return t, nil
}

// goroutineShards is how many shards connections share in a model without
// loops: enough that two rarely want the same.
const goroutineShards = 16

// isOpenLoop says whether messages have planned times.
func (g *generator) isOpenLoop() bool { return g.mode == openLoop || g.mode == openLoopPerConn }

func (g *generator) now() time.Duration { return engine.Since() - g.epoch }

func (g *generator) setWindow(from, until time.Duration) {
	g.windowStart.Store(int64(from))
	g.windowEnd.Store(int64(until))
}

// endWindow ends the window now, unless it has ended already, and says how it
// was.
func (g *generator) endWindow() (from, until time.Duration) {
	until = min(time.Duration(g.windowEnd.Load()), g.now())
	from = min(time.Duration(g.windowStart.Load()), until)
	g.setWindow(from, until)
	g.sharedPlan.Stop(until)
	return from, until
}

// windowLeft is the time until the window's end.
func (g *generator) windowLeft() time.Duration { return time.Duration(g.windowEnd.Load()) - g.now() }

func (g *generator) isInWindow(now time.Duration) bool {
	return int64(now) >= g.windowStart.Load() && int64(now) < g.windowEnd.Load()
}

// shardIndex numbers the shard of a connection.
func (g *generator) shardIndex(c *engine.Conn) int {
	if g.shardPerLoop {
		return c.Owner()
	}
	return int(c.Slot()) % len(g.shards)
}

// Opened has a connection upgraded first where that is asked for.
func (g *generator) Opened(c *engine.Conn) {
	began := c.DialledAt() - g.epoch
	if g.script.frames != nil {
		g.script.frames.sendHandshake(c, g.nextNumber.Add(1)-1, began)
		return
	}
	g.joinOrEstablish(c, g.nextNumber.Add(1)-1, began)
}

// joinOrEstablish goes on with a connection that has been dialled at the given time, and upgraded where
// that is asked for.
func (g *generator) joinOrEstablish(c *engine.Conn, connNumber uint32, dialedAt time.Duration) {
	if g.pubsub != nil {
		g.pubsub.sendJoin(c, connNumber, dialedAt)
		return
	}
	g.establishConn(c, connNumber, dialedAt)
}

// establishConn gives a connection, which was dialled at the given time, its state.
func (g *generator) establishConn(c *engine.Conn, connNumber uint32, dialedAt time.Duration) {
	i := g.shardIndex(c)
	s, now := g.shards[i], g.now()
	if g.isHoldOnly() {
		g.registerHeldConn(c, s, now, dialedAt)
		return
	}
	cs := s.newConnState(g.table, c.Ref(), i, connNumber, now)
	if cs == nil {
		g.faults.recordConnectFailure(errEstablishedLate) // or it would be missed; nobody counts any more if it is late
		c.Abort(errEstablishedLate)
		return
	}
	c.SetValue(cs)
	s.mu.Lock()
	g.table.resetConn(cs, now)
	s.times.connect.record(now-dialedAt, 1)
	if g.cfg.Lifetime > 0 {
		s.timers.push(timer{due: now + g.cfg.Lifetime, conn: cs.index, number: cs.number, kind: lifetimeTimer})
	}
	s.mu.Unlock()
	if g.trafficStarted.Load() || g.cfg.Unprompted {
		g.startConnTraffic(c, cs)
	}
}

// DialFailed counts an attempt that failed.
func (g *generator) DialFailed(err error) { g.faults.recordConnectFailure(err) }

// Nudged starts the traffic on a connection, or does what is due on it.
func (g *generator) Nudged(c *engine.Conn) {
	switch v := c.Value().(type) {
	case *connState:
		if g.trafficStarted.Load() && !g.hasFlags(v, connStarted) {
			g.startConnTraffic(c, v)
			break
		}
		if g.pubsub != nil {
			g.advanceConn(c, v, checkResult{answers: g.pubsub.countFullyDelivered(v)}, g.now())
		}
		g.sendDueMessages(c, v)
	case *heldConn:
		g.sendVerificationLine(c, v)
	case *pubsubConn:
		c.Listen(true)
	default: // it came too late to be held
		g.cancelReservation(g.shardByRef(c.Ref()), c.Ref())
	}
}

func (g *generator) hasFlags(cs *connState, flags uint16) bool {
	s := g.shards[cs.shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	return cs.flags&flags != 0
}

func (g *generator) startConnTraffic(c *engine.Conn, cs *connState) {
	s, now := g.shards[cs.shard], g.now()
	s.mu.Lock()
	cs.flags |= connStarted
	if g.script.hasFirst && g.sendableMessages(cs, 1, now) > 0 {
		g.assignMessage(s, cs, now)
	}
	if !g.script.hasFirst || g.script.awaitsNoAnswer {
		g.assignMessages(s, cs, 0, now)
	}
	p := g.takeDueBatch(s, cs, now)
	s.mu.Unlock()
	g.sendBatch(c, cs, p)
	if g.mode == flooding {
		g.floodSend(c, cs)
	}
}

// Received checks a piece of the answers and sends what may be sent for those
// that are complete.
func (g *generator) Received(c *engine.Conn, in []byte) int {
	cs, ok := c.Value().(*connState)
	if !ok {
		return g.receiveWithoutState(c, in)
	}
	now := g.now()
	if g.closing.Load() || g.cfg.Unprompted && int64(now) >= g.windowEnd.Load() {
		return len(in)
	}
	h := g.script.checkAnswers(c, cs, in, 0)
	g.advanceConn(c, cs, h, now)
	if h.err != nil {
		g.abortWithMismatch(c, cs, in[h.used:], h.err)
		return len(in)
	}
	return h.used
}

// advanceConn moves a connection on by answers, and sends what may be sent for them.
func (g *generator) advanceConn(c *engine.Conn, cs *connState, res checkResult, now time.Duration) {
	s := g.shards[cs.shard]
	s.mu.Lock()
	g.countReceived(s, cs, res, now)
	var p batch
	if res.err == nil {
		if res.serverCloses {
			g.markOrderlyClose(s, cs)
		} else {
			g.recordSendLateness(s, cs, now)
		}
		if res.answers > 0 {
			g.assignMessages(s, cs, res.answers, now)
		}
		p = g.takeDueBatch(s, cs, now)
	}
	s.mu.Unlock()
	g.sendBatch(c, cs, p)
	if res.serverCloses && res.err == nil {
		g.disconnect(c, errKeepAlive)
	}
}

// countReceived adds up what was received, and moves the connection on. The caller holds the
// shard's lock.
func (g *generator) countReceived(s *shard, cs *connState, res checkResult, now time.Duration) {
	if cs.flags&connReplied == 0 {
		cs.flags |= connReplied
		if g.table.openedAt != nil {
			s.times.firstByte.record(now-g.table.openedAt[cs.index], 1)
		}
	}
	measured := g.isInWindow(now)
	s.totals.addCount(nBytesReceived, int64(res.answerBytes), measured)
	if res.answers > 0 {
		s.totals.addCount(nAnswered, int64(res.answers), measured)
		s.totals.run[nBytesAnswered] += g.table.messageBytes(cs, cs.answered, res.answers, g.script)
		if g.pubsub == nil { // whose deliveries are recorded
			g.recordLatencies(s, cs, res.answers, now)
		}
		cs.inFlight -= uint16(res.answers)
		cs.answered += uint64(res.answers)
		s.totals.lastAnswer = now
		if g.cfg.Messages > 0 && cs.answered == uint64(g.cfg.Messages) {
			cs.flags |= connFinished
			s.totals.run[nFinished]++
			s.totals.run[nExchanged]++
		}
	}
}

// recordLatencies records the latencies of answers: those of messages that were sent
// together, which are alike, in one go.
func (g *generator) recordLatencies(s *shard, cs *connState, answers int, now time.Duration) {
	if g.isOpenLoop() {
		g.recordOpenLoopLatencies(s, cs, answers, now)
		return
	}
	to := &s.times.outside
	if g.isInWindow(now) {
		to = &s.times.window
	}
	for k := 0; k < answers; {
		sent, alike := *g.table.sentTime(cs, cs.answered+uint64(k)), 1
		for k+alike < answers && *g.table.sentTime(cs, cs.answered+uint64(k+alike)) == sent {
			alike++
		}
		to.record(now-sent, alike)
		k += alike
	}
}

// recordOpenLoopLatencies records latencies from the times at which messages were to be sent:
// those that were to be sent in the window count.
func (g *generator) recordOpenLoopLatencies(s *shard, cs *connState, answers int, now time.Duration) {
	for k := range uint64(answers) {
		if g.script.hasFirst && cs.answered+k == 0 {
			continue
		}
		at := g.table.slotIndex(cs, cs.answered+k)
		intended := g.table.plannedTimes[at]
		if !g.isPlannedInWindow(intended) {
			s.times.outside.record(now-intended, 1)
			continue
		}
		s.times.window.record(now-intended, 1)
		s.times.service.record(now-g.table.sentTimes[at], 1)
	}
}

// isPlannedInWindow says whether a message that was to be sent at a time counts for the window.
func (g *generator) isPlannedInWindow(plannedAt time.Duration) bool {
	return int64(plannedAt) >= g.windowStart.Load() && int64(plannedAt) < g.windowEnd.Load()
}

// takeDueBatch takes the messages that are due on a connection to be sent now, and counts
// them. The caller holds the shard's lock, and hands them to the connection when it
// has let go of it.
func (g *generator) takeDueBatch(s *shard, cs *connState, now time.Duration) batch {
	if cs.due == 0 || cs.flags&connReconnecting != 0 {
		return batch{}
	}
	p := batch{from: cs.answered + uint64(cs.inFlight), n: int(cs.due), measured: g.isInWindow(now)}
	for k := uint64(cs.resend); k < uint64(p.n); k++ { // others keep the time of the first attempt
		g.table.sentTimes[g.table.slotIndex(cs, p.from+k)] = now
	}
	s.totals.addCount(nResent, int64(cs.resend), p.measured)
	cs.resend = 0
	s.totals.run[nDue] -= int64(p.n)
	if cs.due = 0; g.script.awaitsNoAnswer {
		cs.answered += uint64(p.n)
		g.enqueueReady(s, cs, now) // no answer will
	} else {
		cs.inFlight += uint16(p.n)
	}
	s.totals.addCount(nSent, int64(p.n), p.measured)
	if g.script.fixedSize > 0 {
		s.totals.addCount(nBytesSent, int64(p.n*g.script.fixedSize), p.measured)
	}
	return p
}

// batch are messages that go out together.
type batch struct {
	from     uint64
	n        int
	measured bool
}

func (g *generator) sendBatch(c *engine.Conn, cs *connState, p batch) {
	if p.n == 0 {
		return
	}
	if g.pubsub != nil {
		g.pubsub.publishMessages(c, cs, p.from, p.n)
		return
	}
	size := g.script.sendMessages(c, cs, g.table, p.from, p.n)
	if g.script.fixedSize > 0 {
		return // they are counted already
	}
	s := g.shards[cs.shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.totals.addCount(nBytesSent, int64(size), p.measured)
}

// abortWithMismatch gives up a connection whose answer goes on with got instead of what
// was expected.
func (g *generator) abortWithMismatch(c *engine.Conn, cs *connState, got []byte, reason error) {
	s := g.shards[cs.shard]
	s.mu.Lock()
	cs.flags |= connMismatched
	s.mu.Unlock()
	g.faults.recordMismatch(reason, Mismatch{
		Connection: int64(cs.number), Message: int64(cs.answered), Byte: int(cs.answerPos),
		Want: quoteBytes(g.script.expectedBytes(cs)), Got: quoteBytes(got),
	})
	c.Abort(reason)
}

// Ended looks whether the server has closed in order. The engine closes the connection.
func (g *generator) Ended(c *engine.Conn, in []byte) int {
	cs, ok := c.Value().(*connState)
	if r, ruled := g.script.answerChecker.(*ruleChecker); ok && ruled && g.cfg.detectsOrderlyClose() && !g.closing.Load() {
		if h := r.endAnswer(cs, in); h.serverCloses {
			g.advanceConn(c, cs, h, g.now())
		}
	}
	return len(in)
}

// Closed counts a connection that is gone.
func (g *generator) Closed(c *engine.Conn, reason error) {
	cs, ok := c.Value().(*connState)
	if !ok {
		g.closedWithoutState(c, reason)
		return
	}
	ended := g.hasFlags(cs, connReconnecting)
	if ended && !g.hasFlags(cs, connExpired) && g.reconnector != nil && !g.closing.Load() {
		g.replaceConn(cs, c.Peer())
		return
	}
	if g.countClosedConn(cs)&(connMismatched|connExpired) == 0 && !g.closing.Load() {
		if ended {
			reason = errKeepAlive
		}
		g.faults.recordLostConn(reason)
	}
}

// countClosedConn takes a connection out of the sums that others wait for, and says how it was.
func (g *generator) countClosedConn(cs *connState) (state uint16) {
	s := g.shards[cs.shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	cs.flags |= connClosed
	s.totals.run[nClosed]++
	if !g.closing.Load() || cs.flags&connExpired != 0 {
		s.totals.run[nDropped] += int64(cs.inFlight)
		s.totals.run[nBytesDropped] += g.table.messageBytes(cs, cs.answered, int(cs.inFlight), g.script)
	}
	if cs.flags&connExpired != 0 {
		s.totals.run[nExpired]++
		s.totals.run[nCutOff] += int64(cs.inFlight)
	}
	g.countUnsentOnClose(s, cs)
	s.totals.run[nDue] -= int64(cs.due)
	cs.due = 0
	if cs.flags&connFinished == 0 {
		cs.flags |= connFinished
		s.totals.run[nFinished]++
	}
	if g.cfg.Lifetime > 0 {
		s.freeConns = append(s.freeConns, cs.index)
	}
	return cs.flags
}
