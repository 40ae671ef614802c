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

var (
	errEstablishedLate = errors.New("load: connection established after the connect phase")
	errLifetimeOver    = errors.New("load: the connection's lifetime is over")
)

// generator handles the events of all connections of a run. It implements engine.Handler.
type generator struct {
	cfg          *Config
	script       *trafficScript
	mode         mode
	table        *connTable
	shards       []*shard
	shardPerLoop bool          // one shard per loop; otherwise there are goroutineShards
	epoch        time.Duration // start of the run on the engine's clock
	startTime    time.Time     // start of the run in wall-clock time

	pubsub      *pubsubRun   // nil without publish/subscribe
	reconnector *reconnector // nil if clean closes are not replaced

	sharedPlan *pacer.SharedPlan // plan of an open loop for all connections together
	curve      pacer.RateCurve   // rate of plans over time

	// Times since epoch. The warm-up begins at trafficStart. The window lasts from windowStart to windowEnd. After
	// windowEnd, only messages that an open loop had planned for the window are sent. If trafficStarted is set, new
	// connections begin to send immediately.
	trafficStart, windowStart, windowEnd atomic.Int64
	trafficStarted                       atomic.Bool
	// nudgedConns counts the connections that nudgeConnsToStartSending has nudged (woken up).
	nudgedConns int
	// planDeadline is the time from which an open loop sends no more planned messages, not even overdue ones.
	planDeadline atomic.Int64
	// closing is set when the run is over and closes its connections.
	closing atomic.Bool

	// verifying is the current or last verification of held connections. firstHeard is the time at which the first held
	// connection received the broadcast, or 0 before.
	verifying  atomic.Pointer[lineVerification]
	firstHeard atomic.Int64
	lineEnd    string // end of each line: "\n", or "" on WebSockets
	broadcast  string

	nextNumber atomic.Uint32 // number of the next connection
	faults     faultRecorder
}

type mode uint8

const (
	closedLoop      mode = iota
	openLoop             // one plan is shared by all connections
	openLoopPerConn      // each connection has its own plan
	flooding
	holding
)

// newGenerator returns a generator for an engine with the given number of loops. 0 means a model without loops.
func newGenerator(cfg *Config, loops int) (*generator, error) {
	t := &generator{cfg: cfg, mode: cfg.trafficMode(), epoch: engine.MonotonicNow(), startTime: time.Now(), sharedPlan: pacer.NewSharedPlan()}
	t.setMeasuringWindow(pacer.Never, math.MinInt64)
	if cfg.Unprompted { // the server may send before all connections are established
		t.setMeasuringWindow(pacer.Never, pacer.Never)
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
	places := cfg.maxConnStates()
	if t.isHoldOnly() {
		places = 0
	}
	t.table = newConnTable(places, cfg.Pipeline, len(t.shards))
	var err error
	if t.script, err = newTrafficScript(cfg, t.table, t.faults.recordStatusIfHTTPError); err != nil {
		return nil, err
	}
	if cfg.PubSub == nil {
		t.nextNumber.Store(uint32(cfg.NumberFrom))
	} else {
		t.pubsub = newPubsubRun(t)
		t.script.answerChecker = t.pubsub
	}
	t.table.allocSlicesForMode(t)
	t.lineEnd, t.broadcast = "\n", cfg.Broadcast
	if t.script.frames != nil {
		t.lineEnd, t.broadcast = "", strings.TrimSuffix(cfg.Broadcast, "\n")
	}
	return t, nil
}

const goroutineShards = 16

func (g *generator) isOpenLoop() bool { return g.mode == openLoop || g.mode == openLoopPerConn }

func (g *generator) now() time.Duration { return engine.MonotonicNow() - g.epoch }

func (g *generator) setMeasuringWindow(from, until time.Duration) {
	g.windowStart.Store(int64(from))
	g.windowEnd.Store(int64(until))
}

func (g *generator) endMeasuringWindowAndPlan() (start, end time.Duration) {
	end = min(time.Duration(g.windowEnd.Load()), g.now())
	start = min(time.Duration(g.windowStart.Load()), end)
	g.setMeasuringWindow(start, end)
	g.sharedPlan.EndNoLaterThan(end)
	return start, end
}

func (g *generator) windowLeft() time.Duration { return time.Duration(g.windowEnd.Load()) - g.now() }

func (g *generator) isInWindow(now time.Duration) bool {
	return int64(now) >= g.windowStart.Load() && int64(now) < g.windowEnd.Load()
}

func (g *generator) shardIndex(c *engine.Conn) int {
	if g.shardPerLoop {
		return c.LoopIndex()
	}
	return int(c.Slot()) % len(g.shards)
}

// Opened assigns a number to a new connection. With WebSockets, it then sends the handshake request. Otherwise, it
// calls sendHelloOrRegister.
func (g *generator) Opened(c *engine.Conn) {
	began := c.DialStartedAt() - g.epoch
	if g.script.frames != nil {
		g.script.frames.sendWSHandshakeRequest(c, g.nextNumber.Add(1)-1, began)
		return
	}
	g.sendHelloOrRegister(c, g.nextNumber.Add(1)-1, began)
}

// sendHelloOrRegister prepares a new connection for its traffic. In a publish/subscribe run, it sends a publisher's
// greeting or a subscription to the server. In other runs, it counts the connection as established. If the traffic of
// the run has begun, the connection then starts to send.
func (g *generator) sendHelloOrRegister(c *engine.Conn, connNumber uint32, dialedAt time.Duration) {
	if g.pubsub != nil {
		g.pubsub.sendPublisherHelloOrSubscription(c, connNumber, dialedAt)
		return
	}
	g.registerAndStartConnOrAbortLate(c, connNumber, dialedAt)
}

func (g *generator) registerAndStartConnOrAbortLate(c *engine.Conn, connNumber uint32, dialedAt time.Duration) {
	i := g.shardIndex(c)
	s, now := g.shards[i], g.now()
	if g.isHoldOnly() {
		g.registerHeldConnOrAbortLate(c, s, now, dialedAt)
		return
	}
	cs := s.initAndCountEstablishedConn(g.table, c.Ref(), i, connNumber, now)
	if cs == nil {
		g.faults.recordConnectFailureUnlessEnded(errEstablishedLate) // counts unless the connect phase is over
		c.Abort(errEstablishedLate)
		return
	}
	c.SetValue(cs)
	s.mu.Lock()
	g.table.resetPlanAndParserState(cs, now)
	s.times.connect.record(now-dialedAt, 1)
	if g.cfg.Lifetime > 0 {
		s.timers.push(timer{due: now + g.cfg.Lifetime, conn: cs.index, number: cs.number, kind: lifetimeTimer})
	}
	s.mu.Unlock()
	if g.trafficStarted.Load() || g.cfg.Unprompted {
		g.startConnTraffic(c, cs)
	}
}

func (g *generator) DialFailed(err error) { g.faults.recordConnectFailureUnlessEnded(err) }

// Nudged handles a wake-up by engine.Ref.Nudge. It starts or continues a connection's traffic, sends a held
// connection's verification line, or lets a slow subscriber read.
func (g *generator) Nudged(c *engine.Conn) {
	switch v := c.Value().(type) {
	case *connState:
		if g.trafficStarted.Load() && !g.hasAnyFlag(v, connStarted) {
			g.startConnTraffic(c, v)
			break
		}
		if g.pubsub != nil {
			g.recordAnswersThenSendOrReconnect(c, v, checkResult{answers: g.pubsub.clearNudgeAndCountDeliveredPrefix(v)}, g.now())
		}
		g.sendDueOrCloseExpired(c, v)
	case *heldConn:
		g.sendVerificationLineIfReserved(c, v)
	case *pubsubMember:
		c.SetReading(true)
	default: // too late: the hold is over
		g.cancelUnsentReservation(g.shardByRef(c.Ref()), c.Ref())
	}
}

func (g *generator) hasAnyFlag(cs *connState, flags uint16) bool {
	s := g.shards[cs.shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	return cs.flags&flags != 0
}

func (g *generator) startConnTraffic(c *engine.Conn, cs *connState) {
	s, now := g.shards[cs.shard], g.now()
	s.mu.Lock()
	cs.flags |= connStarted
	if g.script.hasFirst && g.capAtQuotaAndWindowEndLocked(cs, 1, now) > 0 {
		g.markMessageDueLocked(s, cs, now)
	}
	if !g.script.hasFirst || g.script.awaitsNoAnswer {
		g.scheduleNextMessagesLocked(s, cs, 0, now)
	}
	p := g.takeDueBatchLocked(s, cs, now)
	s.mu.Unlock()
	g.sendOrPublishBatch(c, cs, p)
	if g.mode == flooding {
		g.sendFloodBatches(c, cs)
	}
}

// Received checks the input against the expected answers, and sends the messages that are due next. It returns the
// number of consumed bytes.
func (g *generator) Received(c *engine.Conn, in []byte) int {
	cs, ok := c.Value().(*connState)
	if !ok {
		return g.dispatchHandshakePubsubOrHeldInput(c, in)
	}
	now := g.now()
	if g.closing.Load() || g.cfg.Unprompted && int64(now) >= g.windowEnd.Load() {
		return len(in)
	}
	h := g.script.checkAnswers(c, cs, in, 0)
	g.recordAnswersThenSendOrReconnect(c, cs, h, now)
	if h.err != nil {
		g.abortWithMismatch(c, cs, in[h.used:], h.err)
		return len(in)
	}
	return h.used
}

func (g *generator) recordAnswersThenSendOrReconnect(c *engine.Conn, cs *connState, res checkResult, now time.Duration) {
	s := g.shards[cs.shard]
	s.mu.Lock()
	g.recordAnswersAndLatenciesLocked(s, cs, res, now)
	var p batch
	if res.err == nil {
		if res.serverCloses {
			g.markReconnectingAndRequeueLocked(s, cs)
		} else {
			g.recordOpenLoopLatenessLocked(s, cs, now)
		}
		if res.answers > 0 {
			g.scheduleNextMessagesLocked(s, cs, res.answers, now)
		}
		p = g.takeDueBatchLocked(s, cs, now)
	}
	s.mu.Unlock()
	g.sendOrPublishBatch(c, cs, p)
	if res.serverCloses && res.err == nil {
		g.closeOrResetAsConfigured(c, errKeepAlive)
	}
}

// recordAnswersAndLatenciesLocked records answers, latencies and the time to the first byte. The caller holds s.mu.
func (g *generator) recordAnswersAndLatenciesLocked(s *shard, cs *connState, res checkResult, now time.Duration) {
	if cs.flags&connReplied == 0 {
		cs.flags |= connReplied
		if g.table.openedAt != nil {
			s.times.firstByte.record(now-g.table.openedAt[cs.index], 1)
		}
	}
	measured := g.isInWindow(now)
	s.totals.addToRunAndWindow(nBytesReceived, int64(res.answerBytes), measured)
	if res.answers > 0 {
		s.totals.addToRunAndWindow(nAnswered, int64(res.answers), measured)
		s.totals.run[nBytesAnswered] += g.table.totalMessageBytes(cs, cs.answered, res.answers, g.script)
		if g.pubsub == nil { // pubsub records each delivery instead
			g.recordLatenciesLocked(s, cs, res.answers, now)
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

func (g *generator) recordLatenciesLocked(s *shard, cs *connState, answers int, now time.Duration) {
	if g.isOpenLoop() {
		g.recordOpenLoopLatenciesLocked(s, cs, answers, now)
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

// recordOpenLoopLatenciesLocked records a latency and a service time for each answer of an open loop. The latency
// begins at the planned time of the message, and the service time begins when the message was sent. The message
// Config.First is skipped, because it has no planned time.
func (g *generator) recordOpenLoopLatenciesLocked(s *shard, cs *connState, answers int, now time.Duration) {
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

func (g *generator) isPlannedInWindow(plannedAt time.Duration) bool {
	return int64(plannedAt) >= g.windowStart.Load() && int64(plannedAt) < g.windowEnd.Load()
}

// takeDueBatchLocked takes a connection's due messages as one batch, and counts them as sent. The caller holds the
// shard's lock, and must send the batch after releasing it.
func (g *generator) takeDueBatchLocked(s *shard, cs *connState, now time.Duration) batch {
	if cs.due == 0 || cs.flags&connReconnecting != 0 {
		return batch{}
	}
	p := batch{from: cs.answered + uint64(cs.inFlight), n: int(cs.due), measured: g.isInWindow(now)}
	for k := uint64(cs.resend); k < uint64(p.n); k++ { // messages sent again keep the time of the first attempt
		g.table.sentTimes[g.table.slotIndex(cs, p.from+k)] = now
	}
	s.totals.addToRunAndWindow(nResent, int64(cs.resend), p.measured)
	cs.resend = 0
	s.totals.run[nDue] -= int64(p.n)
	if cs.due = 0; g.script.awaitsNoAnswer {
		cs.answered += uint64(p.n)
		g.queueForNextPlannedLocked(s, cs, now) // otherwise an answer does this, but none is expected
	} else {
		cs.inFlight += uint16(p.n)
	}
	s.totals.addToRunAndWindow(nSent, int64(p.n), p.measured)
	if g.cfg.Silent && p.from > 0 {
		return batch{}
	}
	if g.script.fixedSize > 0 {
		s.totals.addToRunAndWindow(nBytesSent, int64(p.n*g.script.fixedSize), p.measured)
	}
	return p
}

type batch struct {
	from     uint64
	n        int
	measured bool
}

func (g *generator) sendOrPublishBatch(c *engine.Conn, cs *connState, p batch) {
	if p.n == 0 {
		return
	}
	if g.pubsub != nil {
		g.pubsub.publishMessages(c, cs, p.from, p.n)
		return
	}
	size := g.script.generateAndWriteMessages(c, cs, g.table, p.from, p.n)
	if g.script.fixedSize > 0 {
		return // counted before
	}
	s := g.shards[cs.shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.totals.addToRunAndWindow(nBytesSent, int64(size), p.measured)
}

// abortWithMismatch records a wrong answer and resets the connection. got is the input from the first wrong byte on.
func (g *generator) abortWithMismatch(c *engine.Conn, cs *connState, got []byte, reason error) {
	s := g.shards[cs.shard]
	s.mu.Lock()
	cs.flags |= connMismatched
	s.mu.Unlock()
	g.faults.countMismatchAndKeepFirst(reason, Mismatch{
		Connection: int64(cs.number), Message: int64(cs.answered), Byte: int(cs.answerPos),
		Want: quoteTruncated(g.script.nextExpectedBytes(cs)), Got: quoteTruncated(got),
	})
	c.Abort(reason)
}

// Ended is called when the server has closed its side of the connection. If this is a clean close (see
// Config.NoReconnect), Ended marks the connection for replacement and closes it. In all other cases, only Closed acts.
func (g *generator) Ended(c *engine.Conn, in []byte) int {
	cs, ok := c.Value().(*connState)
	if r, ruled := g.script.answerChecker.(*matchRuleChecker); ok && ruled && g.cfg.detectsOrderlyClose() && !g.closing.Load() {
		if h := r.endAnswersAndDetectCleanClose(cs, in); h.serverCloses {
			g.recordAnswersThenSendOrReconnect(c, cs, h, g.now())
		}
	}
	return len(in)
}

// Closed is called when a connection is closed. If the server closed the connection cleanly and the run replaces such
// connections, Closed starts the replacement. Otherwise, Closed counts the connection as closed. It also counts the
// connection as lost, unless the run itself closed it.
func (g *generator) Closed(c *engine.Conn, reason error) {
	cs, ok := c.Value().(*connState)
	if !ok {
		g.recordHandshakePubsubOrHeldClose(c, reason)
		return
	}
	ended := g.hasAnyFlag(cs, connReconnecting)
	if ended && !g.hasAnyFlag(cs, connExpired) && g.reconnector != nil && !g.closing.Load() {
		g.queueOrStartReplacementDial(cs, c.Peer())
		return
	}
	if g.markConnClosedAndCountDropped(cs)&(connMismatched|connExpired) == 0 && !g.closing.Load() {
		if ended {
			reason = errKeepAlive
		}
		g.faults.recordLostConn(reason)
	}
}

func (g *generator) markConnClosedAndCountDropped(cs *connState) (flagsAfter uint16) {
	s := g.shards[cs.shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	cs.flags |= connClosed
	s.totals.run[nClosed]++
	if !g.closing.Load() || cs.flags&connExpired != 0 {
		s.totals.run[nDropped] += int64(cs.inFlight)
		s.totals.run[nBytesDropped] += g.table.totalMessageBytes(cs, cs.answered, int(cs.inFlight), g.script)
	}
	if cs.flags&connExpired != 0 {
		s.totals.run[nExpired]++
		s.totals.run[nCutOff] += int64(cs.inFlight)
	}
	g.skipPlanAndCountUnsentLocked(s, cs)
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
