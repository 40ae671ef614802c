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

// errLate closes a connection that was established when nobody waited for it
// any more; errOutlived one whose lifetime is over.
var (
	errLate     = errors.New("load: established after the connect phase")
	errOutlived = errors.New("load: its lifetime is over")
)

// traffic is the handler of a run: what happens on a connection. Its fields do
// not change once connecting begins, but for those that are atomic or locked.
type traffic struct {
	cfg    *Config
	script *script
	mode   mode
	table  *connTable
	shards []*shard
	looped bool          // a shard for each loop
	epoch  time.Duration // the run's start, of the engine's clock
	began  time.Time     // the same, of the calendar

	pubsub      *pubsub      // nil where it is none
	reconnector *reconnector // nil where connections are not replaced

	plan  *pacer.Shared // in an open loop for all connections together
	curve pacer.Curve   // of plans, from begin on

	// from and until are the window, since epoch. Nothing is sent from
	// until on, but what an open loop had planned before. begin is when the
	// traffic began, and going says that connections begin when they are
	// established.
	begin, from, until atomic.Int64
	going              atomic.Bool
	// nudged is how many connections the starter is through with. It is the starter's while
	// that runs.
	nudged int
	// draining is when what an open loop has planned is given up.
	draining atomic.Int64
	// closing says that connections close because the run is over.
	closing atomic.Bool

	// Of connections that are only held: the verification that is on, or was last,
	// and how far the loops are with it; when the broadcast first came.
	verifying  atomic.Pointer[verification]
	firstHeard atomic.Int64
	lineEnd    string // of lines; messages of a WebSocket have none
	broadcast  string

	numbers atomic.Uint32 // of connections: the next one
	faults  faults
}

// mode is what sends messages.
type mode uint8

const (
	closedLoop mode = iota
	openLoop        // for all connections together
	openEach        // for each
	flooding
	holding
)

// newTraffic makes a handler for an engine with that many loops, 0 for a model without.
func newTraffic(cfg *Config, loops int) (*traffic, error) {
	t := &traffic{cfg: cfg, mode: cfg.mode(), epoch: engine.MonotonicNow(), began: time.Now(), plan: pacer.NewShared()}
	t.window(pacer.Never, math.MinInt64)
	if cfg.Unprompted { // the server does not wait until all are connected
		t.window(pacer.Never, pacer.Never)
	}
	t.looped = loops > 0
	t.shards = make([]*shard, loops)
	if !t.looped {
		t.shards = make([]*shard, goroutineShards)
	}
	for i := range t.shards {
		s := &shard{times: newTimes(t.mode == holding)}
		s.unheard, s.heard = held{shard: s}, held{shard: s, heard: true}
		if cfg.Check > 0 {
			s.held = make([]engine.Ref, 0, cfg.Connections/len(t.shards)+tableRun)
		}
		t.shards[i] = s
	}
	places := cfg.placed()
	if t.holdsOnly() {
		places = 0
	}
	t.table = newConnTable(places, cfg.Pipeline, len(t.shards))
	var err error
	if t.script, err = newScript(cfg, t.table, t.faults.status); err != nil {
		return nil, err
	}
	if cfg.PubSub == nil {
		t.numbers.Store(uint32(cfg.NumberFrom))
	} else {
		t.pubsub = newPubSub(t)
		t.script.checker = t.pubsub
	}
	t.table.alloc(t)
	t.lineEnd, t.broadcast = "\n", cfg.Broadcast
	if t.script.frames != nil {
		t.lineEnd, t.broadcast = "", strings.TrimSuffix(cfg.Broadcast, "\n")
	}
	return t, nil
}

// goroutineShards is how many shards connections share in a model without
// loops: enough that two rarely want the same.
const goroutineShards = 16

// open says whether messages have planned times.
func (t *traffic) open() bool { return t.mode == openLoop || t.mode == openEach }

func (t *traffic) now() time.Duration { return engine.MonotonicNow() - t.epoch }

func (t *traffic) window(from, until time.Duration) {
	t.from.Store(int64(from))
	t.until.Store(int64(until))
}

// endWindow ends the window now, unless it has ended already, and says how it
// was.
func (t *traffic) endWindow() (from, until time.Duration) {
	until = min(time.Duration(t.until.Load()), t.now())
	from = min(time.Duration(t.from.Load()), until)
	t.window(from, until)
	t.plan.Stop(until)
	return from, until
}

// left is the time until the window's end.
func (t *traffic) left() time.Duration { return time.Duration(t.until.Load()) - t.now() }

func (t *traffic) measured(now time.Duration) bool {
	return int64(now) >= t.from.Load() && int64(now) < t.until.Load()
}

// shardOf numbers the shard of a connection.
func (t *traffic) shardOf(c *engine.Conn) int {
	if t.looped {
		return c.LoopIndex()
	}
	return int(c.Slot()) % len(t.shards)
}

// Opened has a connection upgraded first where that is asked for.
func (t *traffic) Opened(c *engine.Conn) {
	began := c.DialStartedAt() - t.epoch
	if t.script.frames != nil {
		t.script.frames.greet(c, t.numbers.Add(1)-1, began)
		return
	}
	t.upgraded(c, t.numbers.Add(1)-1, began)
}

// upgraded goes on with a connection that has been dialled at the given time, and upgraded where
// that is asked for.
func (t *traffic) upgraded(c *engine.Conn, number uint32, began time.Duration) {
	if t.pubsub != nil {
		t.pubsub.greet(c, number, began)
		return
	}
	t.establish(c, number, began)
}

// establish gives a connection, which was dialled at the given time, its state.
func (t *traffic) establish(c *engine.Conn, number uint32, began time.Duration) {
	i := t.shardOf(c)
	s, now := t.shards[i], t.now()
	if t.holdsOnly() {
		t.hold(c, s, now, began)
		return
	}
	l := s.newConn(t.table, c.Ref(), i, number, now)
	if l == nil {
		t.faults.refused(errLate) // or it would be missed; nobody counts any more if it is late
		c.Abort(errLate)
		return
	}
	c.SetValue(l)
	s.mu.Lock()
	t.table.reset(l, now)
	s.times.connect.record(now-began, 1)
	if t.cfg.Lifetime > 0 {
		s.timers.push(timer{at: now + t.cfg.Lifetime, conn: l.id, number: l.number, kind: outlived})
	}
	s.mu.Unlock()
	if t.going.Load() || t.cfg.Unprompted {
		t.start(c, l)
	}
}

// DialFailed counts an attempt that failed.
func (t *traffic) DialFailed(err error) { t.faults.refused(err) }

// Nudged starts the traffic on a connection, or does what is due on it.
func (t *traffic) Nudged(c *engine.Conn) {
	switch v := c.Value().(type) {
	case *connState:
		if t.going.Load() && !t.has(v, started) {
			t.start(c, v)
			break
		}
		if t.pubsub != nil {
			t.advance(c, v, progress{answers: t.pubsub.through(v)}, t.now())
		}
		t.doDue(c, v)
	case *held:
		t.sendLine(c, v)
	case *member:
		c.SetReading(true)
	default: // it came too late to be held
		t.cancel(t.shardNamed(c.Ref()), c.Ref())
	}
}

func (t *traffic) has(l *connState, bits uint16) bool {
	s := t.shards[l.shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	return l.state&bits != 0
}

func (t *traffic) start(c *engine.Conn, l *connState) {
	s, now := t.shards[l.shard], t.now()
	s.mu.Lock()
	l.state |= started
	if t.script.first && t.allowed(l, 1, now) > 0 {
		t.claim(s, l, now)
	}
	if !t.script.first || t.script.noReply {
		t.refill(s, l, 0, now)
	}
	p := t.sending(s, l, now)
	s.mu.Unlock()
	t.send(c, l, p)
	if t.mode == flooding {
		t.pour(c, l)
	}
}

// Received checks a piece of the answers and sends what may be sent for those
// that are complete.
func (t *traffic) Received(c *engine.Conn, in []byte) int {
	l, ok := c.Value().(*connState)
	if !ok {
		return t.receivedElse(c, in)
	}
	now := t.now()
	if t.closing.Load() || t.cfg.Unprompted && int64(now) >= t.until.Load() {
		return len(in)
	}
	h := t.script.check(c, l, in, 0)
	t.advance(c, l, h, now)
	if h.wrong != nil {
		t.mistake(c, l, in[h.used:], h.wrong)
		return len(in)
	}
	return h.used
}

// advance moves a connection on by answers, and sends what may be sent for them.
func (t *traffic) advance(c *engine.Conn, l *connState, h progress, now time.Duration) {
	s := t.shards[l.shard]
	s.mu.Lock()
	t.account(s, l, h, now)
	var p batch
	if h.wrong == nil {
		if h.last {
			t.endInOrder(s, l)
		} else {
			t.recordLate(s, l, now)
		}
		if h.answers > 0 {
			t.refill(s, l, h.answers, now)
		}
		p = t.sending(s, l, now)
	}
	s.mu.Unlock()
	t.send(c, l, p)
	if h.last && h.wrong == nil {
		t.disconnect(c, errKeepAlive)
	}
}

// account adds up what was received, and moves the connection on. The caller holds the
// shard's lock.
func (t *traffic) account(s *shard, l *connState, h progress, now time.Duration) {
	if l.state&replied == 0 {
		l.state |= replied
		if t.table.opened != nil {
			s.times.firstByte.record(now-t.table.opened[l.id], 1)
		}
	}
	measured := t.measured(now)
	s.sum.count(nBytesReceived, int64(h.bytes), measured)
	if h.answers > 0 {
		s.sum.count(nAnswered, int64(h.answers), measured)
		s.sum.run[nBytesAnswered] += t.table.bytes(l, l.answered, h.answers, t.script)
		if t.pubsub == nil { // whose deliveries are recorded
			t.recordAll(s, l, h.answers, now)
		}
		l.inFlight -= uint16(h.answers)
		l.answered += uint64(h.answers)
		s.sum.lastAnswer = now
		if t.cfg.Messages > 0 && l.answered == uint64(t.cfg.Messages) {
			l.state |= finished
			s.sum.run[nFinished]++
			s.sum.run[nExchanged]++
		}
	}
}

// recordAll records the latencies of answers: those of messages that were sent
// together, which are alike, in one go.
func (t *traffic) recordAll(s *shard, l *connState, answers int, now time.Duration) {
	if t.open() {
		t.recordOpen(s, l, answers, now)
		return
	}
	to := &s.times.outside
	if t.measured(now) {
		to = &s.times.window
	}
	for k := 0; k < answers; {
		sent, alike := *t.table.sentAt(l, l.answered+uint64(k)), 1
		for k+alike < answers && *t.table.sentAt(l, l.answered+uint64(k+alike)) == sent {
			alike++
		}
		to.record(now-sent, alike)
		k += alike
	}
}

// recordOpen records latencies from the times at which messages were to be sent:
// those that were to be sent in the window count.
func (t *traffic) recordOpen(s *shard, l *connState, answers int, now time.Duration) {
	for k := range uint64(answers) {
		if t.script.first && l.answered+k == 0 {
			continue
		}
		at := t.table.place(l, l.answered+k)
		intended := t.table.intended[at]
		if !t.counts(intended) {
			s.times.outside.record(now-intended, 1)
			continue
		}
		s.times.window.record(now-intended, 1)
		s.times.service.record(now-t.table.times[at], 1)
	}
}

// counts says whether a message that was to be sent at a time counts for the window.
func (t *traffic) counts(at time.Duration) bool {
	return int64(at) >= t.from.Load() && int64(at) < t.until.Load()
}

// sending takes the messages that are due on a connection to be sent now, and counts
// them. The caller holds the shard's lock, and hands them to the connection when it
// has let go of it.
func (t *traffic) sending(s *shard, l *connState, now time.Duration) batch {
	if l.due == 0 || l.state&reconnecting != 0 {
		return batch{}
	}
	p := batch{from: l.answered + uint64(l.inFlight), n: int(l.due), measured: t.measured(now)}
	for k := uint64(l.resend); k < uint64(p.n); k++ { // others keep the time of the first attempt
		t.table.times[t.table.place(l, p.from+k)] = now
	}
	s.sum.count(nResent, int64(l.resend), p.measured)
	l.resend = 0
	s.sum.run[nDue] -= int64(p.n)
	if l.due = 0; t.script.noReply {
		l.answered += uint64(p.n)
		t.standBy(s, l, now) // no answer will
	} else {
		l.inFlight += uint16(p.n)
	}
	s.sum.count(nSent, int64(p.n), p.measured)
	if t.script.fixed > 0 {
		s.sum.count(nBytesSent, int64(p.n*t.script.fixed), p.measured)
	}
	return p
}

// batch are messages that go out together.
type batch struct {
	from     uint64
	n        int
	measured bool
}

func (t *traffic) send(c *engine.Conn, l *connState, p batch) {
	if p.n == 0 {
		return
	}
	if t.pubsub != nil {
		t.pubsub.publish(c, l, p.from, p.n)
		return
	}
	size := t.script.say(c, l, t.table, p.from, p.n)
	if t.script.fixed > 0 {
		return // they are counted already
	}
	s := t.shards[l.shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum.count(nBytesSent, int64(size), p.measured)
}

// mistake gives up a connection whose answer goes on with got instead of what
// was expected.
func (t *traffic) mistake(c *engine.Conn, l *connState, got []byte, why error) {
	s := t.shards[l.shard]
	s.mu.Lock()
	l.state |= mistaken
	s.mu.Unlock()
	t.faults.wrong(why, Mismatch{
		Connection: int64(l.number), Message: int64(l.answered), Byte: int(l.pos),
		Want: quote(t.script.expects(l)), Got: quote(got),
	})
	c.Abort(why)
}

// Ended looks whether the server has closed in order. The engine closes the connection.
func (t *traffic) Ended(c *engine.Conn, in []byte) int {
	l, ok := c.Value().(*connState)
	if r, ruled := t.script.checker.(*ruled); ok && ruled && t.cfg.endsInOrder() && !t.closing.Load() {
		if h := r.end(l, in); h.last {
			t.advance(c, l, h, t.now())
		}
	}
	return len(in)
}

// Closed counts a connection that is gone.
func (t *traffic) Closed(c *engine.Conn, why error) {
	l, ok := c.Value().(*connState)
	if !ok {
		t.closedElse(c, why)
		return
	}
	ended := t.has(l, reconnecting)
	if ended && !t.has(l, expired) && t.reconnector != nil && !t.closing.Load() {
		t.reconnect(l, c.Peer())
		return
	}
	if t.leave(l)&(mistaken|expired) == 0 && !t.closing.Load() {
		if ended {
			why = errKeepAlive
		}
		t.faults.gone(why)
	}
}

// leave takes a connection out of the sums that others wait for, and says how it was.
func (t *traffic) leave(l *connState) (state uint16) {
	s := t.shards[l.shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	l.state |= gone
	s.sum.run[nClosed]++
	if !t.closing.Load() || l.state&expired != 0 {
		s.sum.run[nDropped] += int64(l.inFlight)
		s.sum.run[nBytesDropped] += t.table.bytes(l, l.answered, int(l.inFlight), t.script)
	}
	if l.state&expired != 0 {
		s.sum.run[nExpired]++
		s.sum.run[nCutOff] += int64(l.inFlight)
	}
	t.countUnsent(s, l)
	s.sum.run[nDue] -= int64(l.due)
	l.due = 0
	if l.state&finished == 0 {
		l.state |= finished
		s.sum.run[nFinished]++
	}
	if t.cfg.Lifetime > 0 {
		s.free = append(s.free, l.id)
	}
	return l.state
}
