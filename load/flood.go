package load

import (
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file has floods, and the limits of bytes a second.

// The bounds of a flood: how much a connection is given at once, which is also what it
// may owe the kernel for more, and how often in one turn. Many connections are given
// less, so that all of them together have about floodTotal.
const (
	floodBytes = 64 << 10
	floodLeast = 4 << 10
	floodTotal = 128 << 20
	floodTurn  = 4
)

// floodAhead is how much a connection is given at once.
func (c *Config) floodAhead() int {
	return min(max(floodTotal/c.most(), floodLeast), floodBytes)
}

// Drained goes on with a flood when the kernel has taken what it had.
func (t *traffic) Drained(c *engine.Conn) {
	if l, ok := c.Value().(*connState); ok && t.mode == flooding && t.is(l, started) {
		t.pour(c, l)
	}
}

// pour sends until the kernel takes no more, or the turn is over. Drained comes then,
// or when the kernel has taken what is left, because Paused has been asked.
func (t *traffic) pour(c *engine.Conn, l *connState) {
	s := t.shards[l.shard]
	n, ahead := t.floodMessages(), t.cfg.floodAhead()
	for range floodTurn {
		if c.Pending() > ahead {
			break
		}
		now := t.now()
		s.mu.Lock()
		if t.owesLimit(s, l, now) || t.allowed(l, 1, now) == 0 {
			s.mu.Unlock()
			return
		}
		p := batch{from: l.answered, n: t.allowed(l, n, now), measured: t.measured(now)}
		l.answered += uint64(p.n)
		s.sum.count(nSent, int64(p.n), p.measured)
		s.sum.count(nBytesSent, int64(p.n*t.script.fixed), p.measured)
		s.mu.Unlock()
		t.send(c, l, p)
		if c.Doomed() {
			return
		}
	}
	c.Paused()
	if t.cfg.SendLimit > 0 { // the kernel may have taken all
		s.mu.Lock()
		t.alarmTab(s, l)
		s.mu.Unlock()
	}
}

// floodMessages is how many messages are sent at once.
func (t *traffic) floodMessages() int {
	bytes := t.cfg.floodAhead()
	if limit := t.cfg.SendLimit; limit > 0 {
		bytes = min(bytes, limit/50) // what may be sent in 20 ms
	}
	return max(bytes/t.script.longest(), 1)
}

// chargeOutput puts bytes that were sent on a connection's budget.
func (t *traffic) chargeOutput(l *connState, bytes int) {
	if t.cfg.SendLimit > 0 {
		budget := &t.table.budgets[l.id]
		budget.sent = max(budget.sent, t.now()) + per(bytes, t.cfg.SendLimit)
	}
}

// per is the time that bytes take at so many a second.
func per(bytes, limit int) time.Duration {
	return time.Duration(float64(bytes) / float64(limit) * float64(time.Second))
}

// owesLimit says whether a flood has to wait for its limit, and sets a timer.
func (t *traffic) owesLimit(s *shard, l *connState, now time.Duration) bool {
	if t.cfg.SendLimit == 0 || t.table.budgets[l.id].sent <= now {
		return false
	}
	t.alarmTab(s, l)
	return true
}

// alarmTab sets a connection's timer for when it may send again.
func (t *traffic) alarmTab(s *shard, l *connState) {
	if l.state&timed == 0 {
		l.state |= timed
		s.timers.push(timer{at: t.table.budgets[l.id].sent, conn: l.id, number: l.number, kind: planned})
	}
}

// hearAhead is how far ahead of its limit a connection may receive before it stops.
const hearAhead = 5 * time.Millisecond

// limitInput puts bytes that were received on a connection's budget, and says whether it is
// not to listen for a while.
func (t *traffic) limitInput(s *shard, l *connState, bytes int, now time.Duration) bool {
	if t.cfg.ReceiveLimit == 0 {
		return false
	}
	budget := &t.table.budgets[l.id]
	budget.received = max(budget.received, now) + per(bytes, t.cfg.ReceiveLimit)
	if budget.received < now+hearAhead || l.state&deaf != 0 {
		return false
	}
	l.state |= deaf
	s.timers.push(timer{at: budget.received, conn: l.id, number: l.number, kind: heard})
	return true
}
