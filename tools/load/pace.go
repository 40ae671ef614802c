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

// room says whether a connection may have one more message in flight.
func (t *traffic) room(l *connState) bool {
	return int(l.inFlight)+int(l.due) < t.cfg.Pipeline && l.state&(gone|expired|mistaken|reconnecting) == 0
}

// claim has a connection send one more message, which was to be sent at the given time.
func (t *traffic) claim(s *shard, l *connState, at time.Duration) {
	if t.table.intended != nil {
		t.table.intended[t.table.place(l, l.answered+uint64(l.inFlight)+uint64(l.due))] = at
	}
	l.due++
	s.sum.run[nDue]++
}

// allowed is how many of n messages a connection may send now.
func (t *traffic) allowed(l *connState, n int, now time.Duration) int {
	if int64(now) >= t.until.Load() {
		return 0
	}
	if t.cfg.Messages > 0 {
		n = int(min(uint64(n), uint64(t.cfg.Messages)-l.answered-uint64(l.inFlight)-uint64(l.due)))
	}
	return n
}

// refill has a connection send what it may when answers have made room, or when its
// regular traffic begins.
func (t *traffic) refill(s *shard, l *connState, answers int, now time.Duration) {
	begins := l.state&entered == 0
	l.state |= entered
	switch {
	case t.open():
		if begins && t.mode == openEach {
			t.beginPlan(l, now)
		}
		t.fill(s, l, now)
	case t.mode != closedLoop:
	case begins:
		for range t.allowed(l, t.cfg.Pipeline, now) {
			t.claim(s, l, now)
		}
	default:
		t.goOn(s, l, answers, now)
	}
}

// goOn is a closed loop: a message for each answer, at once or after the think time.
func (t *traffic) goOn(s *shard, l *connState, answers int, now time.Duration) {
	at := now + t.cfg.Think
	for range t.allowed(l, answers, now) {
		if t.cfg.Lifetime > 0 && at >= t.table.opened[l.id]+t.cfg.Lifetime && !t.cfg.reconnects() {
			break // it won't be there; one that reconnects begins its lifetime again
		}
		if at > now {
			s.timers.push(timer{at: at, conn: l.id, number: l.number, kind: thought})
		} else {
			t.claim(s, l, now)
		}
	}
}

// fill has a connection send what the plan has waiting, and then lets it wait for more.
func (t *traffic) fill(s *shard, l *connState, now time.Duration) {
	for t.room(l) {
		at, ok := t.take(s, l, now)
		if !ok {
			break
		}
		t.claim(s, l, at)
	}
	t.standBy(s, l, now)
}

// take takes the next message of the plan, the connection's own if it has one, unless it
// has been given up.
func (t *traffic) take(s *shard, l *connState, now time.Duration) (at time.Duration, ok bool) {
	if int64(now) >= t.draining.Load() {
		return 0, false
	}
	if t.mode == openLoop {
		return t.plan.Take(now)
	}
	p := &t.table.plans[l.id]
	if at = p.Next(); at > now || at >= time.Duration(t.until.Load()) {
		return 0, false
	}
	if t.counts(at) {
		s.sum.run[nPlanned]++
	} else {
		s.sum.run[nEarly]++
	}
	p.Advance(&t.curve, t.seed(l))
	return at, true
}

// standBy lets a connection with room wait for the plan: in the queue of its shard, or
// for a timer.
func (t *traffic) standBy(s *shard, l *connState, now time.Duration) {
	if !t.open() || l.state&entered == 0 || !t.room(l) {
		return
	}
	if t.mode == openLoop {
		if l.state&queued == 0 {
			l.state |= queued
			s.ready.push(l.id)
		}
		return
	}
	next := t.table.plans[l.id].Next()
	if next > 0 && next < time.Duration(t.until.Load()) && int64(now) < t.draining.Load() {
		if l.state&timed == 0 {
			l.state |= timed
			s.timers.push(timer{at: next, conn: l.id, number: l.number, kind: planned})
		}
	}
}

// paced says whether the run has times to wait for at all.
func (t *traffic) paced() bool {
	return t.open() || t.cfg.Lifetime > 0 || t.cfg.Think > 0
}

// The bounds of one call of the pacing: connections that are nudged in it, and how soon
// it wants to be called again, as what it waits for can change.
const (
	paceBatch = 512
	paceEvery = 10 * time.Millisecond
	// Where others than the pacing's goroutine change that, it looks more often.
	paceOther = time.Millisecond
	// paceAgain is when it tries again to call connections for which there was no room.
	paceAgain = 100 * time.Microsecond
)

func (t *traffic) pace(loop int, at time.Duration, touch func(engine.Ref) bool) time.Duration {
	now, next := at-t.epoch, at-t.epoch+paceEvery
	if loop >= 0 {
		return min(next, t.paceShard(t.shards[loop], now, touch)) + t.epoch
	}
	next = now + paceOther
	if due := t.plan.Due(); due > now {
		next = min(next, due) // a connection may be ready by then
	}
	for _, s := range t.shards {
		next = min(next, t.paceShard(s, now, touch))
	}
	return next + t.epoch
}

// paceShard nudges the connections of a shard that have something to do, and says when
// it has to be called again.
func (t *traffic) paceShard(s *shard, now time.Duration, touch func(engine.Ref) bool) time.Duration {
	s.mu.Lock()
	if len(s.again) == 0 && s.timers.next() > now && (s.ready.n == 0 || t.plan.Due() > now) {
		next := t.nextPace(s)
		s.mu.Unlock()
		return next
	}
	calls := append(s.calls[:0], s.again...)
	s.again = s.again[:0]
	calls = t.paceTimers(s, calls, now)
	calls = t.pacePlan(s, calls, now)
	s.mu.Unlock()
	full := false
	for i, ref := range calls {
		if !touch(ref) {
			s.again = append(s.again, calls[i:]...)
			full = true
			break
		}
	}
	s.calls = calls[:0]
	if full {
		return now + paceAgain
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.nextPace(s)
}

// nextPace is when a shard's pacing has something to do.
func (t *traffic) nextPace(s *shard) time.Duration {
	next := s.timers.next()
	if s.ready.n > 0 {
		next = min(next, t.plan.Due())
	}
	return next
}

// call adds a connection to those that are nudged, once.
func call(calls []engine.Ref, l *connState) []engine.Ref {
	if l.state&called != 0 {
		return calls
	}
	l.state |= called
	return append(calls, l.ref)
}

func (t *traffic) paceTimers(s *shard, calls []engine.Ref, now time.Duration) []engine.Ref {
	for len(calls) < paceBatch {
		timer, ok := s.timers.pop(now)
		if !ok {
			break
		}
		l := &t.table.conns[timer.conn]
		if l.number != timer.number || l.state&gone != 0 {
			continue
		}
		switch timer.kind {
		case thought:
			for range min(t.allowed(l, 1, now), 1) {
				t.claim(s, l, now)
			}
		case planned:
			l.state &^= timed
			t.fill(s, l, now)
		case outlived:
			timer.at = t.table.opened[l.id] + t.cfg.Lifetime // later, if it has been replaced
			if l.state&reconnecting != 0 {
				timer.at = now + t.cfg.Lifetime
			}
			if timer.at > now {
				s.timers.push(timer)
				continue
			}
			l.state |= expired
		}
		calls = call(calls, l)
	}
	return calls
}

// pacePlan gives messages of the plan of all to connections that have room, in turn.
func (t *traffic) pacePlan(s *shard, calls []engine.Ref, now time.Duration) []engine.Ref {
	for len(calls) < paceBatch && s.ready.n > 0 {
		if t.plan.Due() > now {
			break
		}
		id, _ := s.ready.pop()
		l := &t.table.conns[id]
		l.state &^= queued
		if !t.room(l) || l.state&started == 0 {
			continue
		}
		at, ok := t.take(s, l, now)
		if !ok {
			l.state |= queued
			s.ready.push(id)
			break
		}
		t.claim(s, l, at)
		if t.room(l) {
			l.state |= queued
			s.ready.push(id)
		}
		calls = call(calls, l)
	}
	return calls
}

// recordLate records how late messages are sent that the pacing has claimed for a
// connection: it had room for them at their time.
func (t *traffic) recordLate(s *shard, l *connState, now time.Duration) {
	if !t.open() {
		return
	}
	for k := range uint64(l.due) {
		if at := t.table.intended[t.table.place(l, l.answered+uint64(l.inFlight)+k)]; t.counts(at) {
			s.times.late.record(now-at, 1)
		}
	}
}

// doDue does what the pacing has left a connection to do.
func (t *traffic) doDue(c *engine.Conn, l *connState) {
	s, now := t.shards[l.shard], t.now()
	s.mu.Lock()
	l.state &^= called
	if l.state&expired != 0 {
		s.mu.Unlock()
		t.disconnect(c, errOutlived)
		return
	}
	t.recordLate(s, l, now)
	p := t.sending(s, l, now)
	s.mu.Unlock()
	t.send(c, l, p)
	if t.mode == flooding {
		t.pour(c, l)
	}
}

// disconnect closes a connection as Graceful says.
func (t *traffic) disconnect(c *engine.Conn, why error) {
	if t.cfg.Graceful {
		c.CloseWith(why)
	} else {
		c.Abort(why)
	}
}

// countUnsent counts what a connection was to send and did not before it closed.
func (t *traffic) countUnsent(s *shard, l *connState) {
	if !t.open() {
		return
	}
	for k := uint64(l.resend); k < uint64(l.due); k++ {
		if t.counts(t.table.intended[t.table.place(l, l.answered+uint64(l.inFlight)+k)]) {
			s.sum.run[nUnsent]++
		}
	}
	if t.mode == openEach {
		draws := skipDraws
		skipped := t.skip(l, min(t.now()+1, time.Duration(t.until.Load())), &draws)
		s.sum.run[nPlanned] += skipped.Within
		s.sum.run[nEarly] += skipped.Before
		s.sum.run[nUnsent] += skipped.Within
		t.table.plans[l.id] = pacer.Plan{}
	}
}

// beginPlan begins a connection's own plan: with the traffic or when the connection is
// established, whichever is later, or when its first message has been answered. The
// plans of connections are spread evenly.
func (t *traffic) beginPlan(l *connState, now time.Duration) {
	const golden = 0.6180339887498949 // its multiples are spread evenly over 0 to 1
	since := t.table.opened[l.id]
	if t.script.first {
		since = now
	}
	_, phase := math.Modf(golden * float64(l.number))
	t.table.plans[l.id] = t.curve.Start(since, phase, t.seed(l))
}

func (t *traffic) seed(l *connState) uint64 { return seedOf(t.cfg.Seed, uint64(l.number)) }

// The bounds of giving up random times: how many are drawn of one plan, and of all those
// of connections together; how many are behind them is estimated.
const (
	skipDraws    = 64
	skipDrawsAll = 100_000
)

// skip gives up what a connection's own plan has before end.
func (t *traffic) skip(l *connState, end time.Duration, draws *int) pacer.Skipped {
	return t.table.plans[l.id].Skip(&t.curve, t.seed(l), time.Duration(t.from.Load()), end, draws)
}

// eachPlan calls f for the own plans of connections that are still there, under their
// shards' locks, while it says so.
func (t *traffic) eachPlan(f func(*connState, *pacer.Plan) bool) {
	t.table.each(t.shards, func(_ *shard, l *connState) bool {
		return l.state&gone != 0 || f(l, &t.table.plans[l.id])
	})
}

// skipAll gives up the messages of plans that have not been sent, when nothing is sent
// any more, and counts them.
func (t *traffic) skipAll() (all pacer.Skipped) {
	until := time.Duration(t.until.Load())
	if t.mode == openLoop {
		return t.plan.Skip(until, skipDrawsAll)
	}
	left := skipDrawsAll
	t.eachPlan(func(l *connState, _ *pacer.Plan) bool {
		draws := min(skipDraws, left)
		left -= draws
		skipped := t.skip(l, until, &draws)
		left += draws
		all.Within += skipped.Within
		all.Before += skipped.Before
		return true
	})
	return all
}

// waiting estimates how many messages of plans are due and not taken.
func (t *traffic) waiting(now time.Duration) (n int64) {
	if t.mode == openLoop {
		return t.plan.Waiting(now)
	}
	until := time.Duration(t.until.Load())
	t.eachPlan(func(_ *connState, p *pacer.Plan) bool {
		n += p.Waiting(&t.curve, now, until)
		return true
	})
	return n
}

// behind says whether plans have something due that has not been sent.
func (t *traffic) behind() (is bool) {
	if t.mode == openLoop {
		return t.plan.Due() < pacer.Never
	}
	until := time.Duration(t.until.Load())
	t.eachPlan(func(_ *connState, p *pacer.Plan) bool {
		is = p.Next() > 0 && p.Next() < until
		return !is
	})
	return is
}

// This file has floods, too.

// The bounds of a flood: how much a connection is given at once, which is also what it
// may owe the kernel for more, and how often in one turn. Many connections are given
// less, so that all of them together have about floodTotal.
const (
	floodBytes = 64 << 10
	floodLeast = 4 << 10
	floodTotal = 128 << 20
	floodTurn  = 4
)

func (c *Config) floodAhead() int {
	return min(max(floodTotal/c.maxOpen(), floodLeast), floodBytes)
}

// Drained goes on with a flood when the kernel has taken what it had.
func (t *traffic) Drained(c *engine.Conn) {
	if l, ok := c.Value().(*connState); ok && t.mode == flooding && t.has(l, started) {
		t.pour(c, l)
	}
}

// pour sends until the kernel takes no more, or the turn is over. Drained comes then,
// or when the kernel has taken what is left, because Paused has been asked.
func (t *traffic) pour(c *engine.Conn, l *connState) {
	s := t.shards[l.shard]
	ahead := t.cfg.floodAhead()
	n := max(ahead/t.script.longest(), 1)
	for range floodTurn {
		if c.UnsentBytes() > ahead {
			break
		}
		now := t.now()
		s.mu.Lock()
		if t.allowed(l, 1, now) == 0 {
			s.mu.Unlock()
			return
		}
		p := batch{from: l.answered, n: t.allowed(l, n, now), measured: t.measured(now)}
		l.answered += uint64(p.n)
		s.sum.count(nSent, int64(p.n), p.measured)
		s.sum.count(nBytesSent, int64(p.n*t.script.fixed), p.measured)
		s.mu.Unlock()
		t.send(c, l, p)
		if c.IsAborted() {
			return
		}
	}
	c.IsPaused()
}
