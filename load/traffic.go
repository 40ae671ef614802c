package load

import (
	"errors"
	"math"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// errLate closes a connection that was established when nobody waited for it
// any more; errWrong one whose answer was wrong.
var (
	errLate  = errors.New("load: established after the connect phase")
	errWrong = errors.New("load: the answer differs from what was expected")
)

// traffic is the handler of a run: what happens on a connection. Its fields do
// not change once connecting begins, but for those that are atomic or locked.
type traffic struct {
	text     text // what is sent
	answer   text // what is expected back
	own      bool // answer is a text of its own
	pipeline int
	messages uint64 // each link's, 0 for no end
	// unprompted says that the server sends when it likes: what comes when
	// the window is over is nobody's answer.
	unprompted bool
	slab       *slab
	shards     []*shard
	looped     bool // a shard for each loop
	epoch      time.Time

	// from and until are the window, since epoch. Nothing is sent from
	// until on.
	from, until atomic.Int64
	// closing says that connections close because the run is over.
	closing atomic.Bool
	faults  faults
}

// newTraffic makes a handler. The number of the engine's loops is told to it
// by serve, before the first connection.
func newTraffic(cfg Config) *traffic {
	t := &traffic{
		pipeline: cfg.Pipeline,
		messages: uint64(cfg.Messages),
		epoch:    time.Now(),

		unprompted: cfg.Unprompted,
	}
	if cfg.Message != nil {
		t.text = repeated(cfg.Message)
	} else {
		t.text = newText(cfg.Size)
	}
	t.answer = t.text
	if cfg.Answer != nil {
		t.own = true
		t.answer = repeated(cfg.Answer)
		t.answer.free, t.answer.freeEnd = cfg.free, cfg.freeEnd
	}
	t.window(math.MaxInt64, math.MinInt64)
	return t
}

// goroutineShards is how many shards connections share in a model without
// loops: enough that two rarely want the same.
const goroutineShards = 32

// serve makes room for connections of an engine with that many loops.
func (t *traffic) serve(loops, connections int) {
	t.looped = loops > 0
	if !t.looped {
		loops = goroutineShards
	}
	t.slab = newSlab(connections, t.pipeline, loops)
	t.shards = make([]*shard, loops)
	for i := range t.shards {
		t.shards[i] = &shard{latency: newHistogram()}
	}
}

// now is the time since the run's start.
func (t *traffic) now() time.Duration { return time.Since(t.epoch) }

// window sets the measured time.
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
	return from, until
}

// left is the time until the window's end.
func (t *traffic) left() time.Duration { return time.Duration(t.until.Load()) - t.now() }

// measured says whether now is in the window.
func (t *traffic) measured(now time.Duration) bool {
	return int64(now) >= t.from.Load() && int64(now) < t.until.Load()
}

// shardOf numbers the shard of a connection.
func (t *traffic) shardOf(c *engine.Conn) int {
	if t.looped {
		return c.Owner()
	}
	return int(c.Slot()) % len(t.shards)
}

// Opened gives a connection its link.
func (t *traffic) Opened(c *engine.Conn) {
	i := t.shardOf(c)
	l := t.shards[i].newLink(t.slab, c.Ref(), t.now())
	if l == nil {
		c.Kill(errLate)
		return
	}
	l.shard = uint16(i)
	l.at = uint32(t.answer.start(l.id))
	c.SetValue(l)
}

// DialFailed counts an attempt that failed.
func (t *traffic) DialFailed(err error) { t.faults.refused(err) }

// Nudged starts the traffic on a connection.
func (t *traffic) Nudged(c *engine.Conn) {
	l, ok := c.Value().(*link)
	if !ok || l.state&started != 0 {
		return
	}
	l.state |= started
	now := t.now()
	n := t.allowed(l, t.pipeline, now)
	if n == 0 {
		return
	}
	t.account(l, progress{now: now, sent: n})
	t.send(c, l, n, now)
}

// Received checks a piece of the answers and sends a message for each answer
// that is complete.
func (t *traffic) Received(c *engine.Conn, in []byte) int {
	l, ok := c.Value().(*link)
	if !ok {
		return len(in)
	}
	p := progress{now: t.now(), first: l.answered}
	if t.unprompted && int64(p.now) >= t.until.Load() {
		return len(in)
	}
	p.bytes, p.answers = t.check(l, in)
	if p.bytes == len(in) {
		p.sent = t.allowed(l, p.answers, p.now)
	}
	t.account(l, p)
	if p.bytes < len(in) {
		t.mistake(c, l, in[p.bytes:])
	} else if p.sent > 0 {
		t.send(c, l, p.sent, p.now)
	}
	return len(in)
}

// check moves a link forward over the bytes at the start of in that are as
// expected, and counts the answers that they complete.
func (t *traffic) check(l *link, in []byte) (good, answers int) {
	owed := int(l.flying)*t.answer.size - int(l.pos)
	good = t.answer.match(int(l.at), in[:min(len(in), owed)])
	l.at = uint32(t.answer.after(int(l.at), good))
	pos := int(l.pos) + good
	for ; pos >= t.answer.size; pos -= t.answer.size {
		answers++
	}
	l.pos = uint32(pos)
	l.flying -= uint16(answers)
	l.answered += uint64(answers)
	return good, answers
}

// allowed is how many of n messages a link may send now.
func (t *traffic) allowed(l *link, n int, now time.Duration) int {
	if int64(now) >= t.until.Load() {
		return 0
	}
	if t.messages > 0 {
		n = int(min(uint64(n), t.messages-l.answered-uint64(l.flying)))
	}
	return n
}

// send hands n messages to a connection.
func (t *traffic) send(c *engine.Conn, l *link, n int, now time.Duration) {
	sent := l.answered + uint64(l.flying)
	for k := range uint64(n) {
		*t.slab.sentAt(l, sent+k) = now
	}
	at := t.next(l)
	l.flying += uint16(n)
	for left := n * t.text.size; left > 0; {
		p := t.text.run(at, left)
		if _, err := c.Write(p); err != nil {
			return // Closed tells why
		}
		left -= len(p)
		at = 0
	}
}

// next is the place of the message that a link sends next: behind those in
// flight, the first of which began pos bytes before at. Where answers are a text
// of their own all messages are the same.
func (t *traffic) next(l *link) int {
	if t.own {
		return 0
	}
	return t.text.after(int(l.at), int(l.flying)*t.text.size+len(t.text.block)-int(l.pos))
}

// progress is what one call of the handler did on a link.
type progress struct {
	now     time.Duration
	first   uint64 // number of the first message that was answered
	answers int
	bytes   int // of answers
	sent    int
}

// account adds up progress. It goes before send, which takes the places of the
// times of the messages that were answered.
func (t *traffic) account(l *link, p progress) {
	did := tally{sent: int64(p.sent), answered: int64(p.answers), bytesIn: int64(p.bytes)}
	measured := t.measured(p.now)
	s := t.shards[l.shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum.whole.add(did)
	if measured {
		s.sum.window.add(did)
		t.record(s, l, p)
	}
	if p.answers > 0 {
		s.sum.lastAnswer = p.now
		if l.answered == t.messages {
			l.state |= finished
			s.sum.finished++
			s.sum.exchanged++
		}
	}
}

// record records the latencies of answers: those of messages that were sent
// together, which are alike, in one go.
func (t *traffic) record(s *shard, l *link, p progress) {
	for k := 0; k < p.answers; {
		sent, alike := *t.slab.sentAt(l, p.first+uint64(k)), 1
		for k+alike < p.answers && *t.slab.sentAt(l, p.first+uint64(k+alike)) == sent {
			alike++
		}
		s.record(p.now-sent, alike)
		k += alike
	}
}

// mistake gives up a connection whose answer goes on with got instead of what
// was sent.
func (t *traffic) mistake(c *engine.Conn, l *link, got []byte) {
	l.state |= mistaken
	var want []byte
	if l.flying > 0 {
		want = t.answer.run(int(l.at), t.answer.size-int(l.pos))
	}
	t.faults.wrong(l, want, got)
	c.Kill(errWrong)
}

// Ended leaves it to the engine to close the connection.
func (t *traffic) Ended(_ *engine.Conn, in []byte) int { return len(in) }

// Closed counts a connection that is gone.
func (t *traffic) Closed(c *engine.Conn, why error) {
	l, ok := c.Value().(*link)
	if !ok {
		return
	}
	t.leave(l)
	if l.state&mistaken == 0 && !t.closing.Load() {
		t.faults.gone(why)
	}
}

// leave takes a link out of the sums that others wait for.
func (t *traffic) leave(l *link) {
	s := t.shards[l.shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum.closed++
	s.sum.dropped += int64(l.flying)
	if l.state&finished == 0 {
		l.state |= finished
		s.sum.finished++
	}
}
