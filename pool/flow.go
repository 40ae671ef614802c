package pool

import (
	"math/bits"
	"sync/atomic"
)

// flow is a queue of one priority, for the keys that a hash puts there.
type flow struct {
	ring
	standing standing
}

// standing says whether a queue stands: the oldest task's age has always been above
// the target, each time that somebody looked, for an interval. That is CoDel's sign
// that a queue does not even out bursts any more, but only adds delay.
type standing struct {
	since int64 // 0 is not
}

// look takes the age of the oldest task into account.
func (s *standing) look(age, now int64, r *rules) bool {
	switch {
	case age <= r.target:
		s.since = 0
	case s.since == 0:
		s.since = now
	}
	return s.since != 0 && now-s.since >= r.interval
}

// rules are what the shards of a pool go by.
type rules struct {
	target, interval   int64
	seed               uint64 // so that nobody can choose whose place they share
	shed, newest, fair bool   // don't change

	// An overload is the whole pool's: it begins when the queue of some key
	// stands, or the tasks that are taken from a shard, of whatever keys, have
	// always been too old. It ends when for an interval none was.
	until   atomic.Int64 // when it ends; 0 is none
	patient atomic.Bool  // none begins now, if none was lately: the number of workers still grows
}

// lately is how many intervals ago an overload may have ended.
const lately = 16

// over says whether the pool is overloaded.
func (r *rules) over(now int64) bool { return now < r.until.Load() }

// judge has an overload begin, or go on.
func (r *rules) judge(stands bool, now int64) {
	if !stands || !r.shed && !r.newest {
		return
	}
	until := r.until.Load()
	if now >= until && r.patient.Load() && (until == 0 || now-until > lately*r.interval) {
		return
	}
	if now+r.interval-until < r.interval/4 {
		return // it goes on anyway
	}
	r.until.Store(now + r.interval)
}

// flows is how many there are in a level: the bits of its mask.
const flows = 64

// level has the flows of one priority. Those that have tasks are served in turn.
type level struct {
	active uint64 // a bit for each flow with tasks
	cursor int    // the flow that was served last
	flows  [flows]flow
}

// next is the flow whose turn it is. There is one.
func (l *level) next() int {
	after := l.cursor + 1
	return (after + bits.TrailingZeros64(bits.RotateLeft64(l.active, -after))) & (flows - 1)
}

// fattest is the flow with the most tasks.
func (l *level) fattest() (at int) {
	most := 0
	for rest := l.active; rest != 0; rest &= rest - 1 {
		i := bits.TrailingZeros64(rest)
		if n := l.flows[i].n; n > most {
			at, most = i, n
		}
	}
	return at
}

// place is which flow a key has: the same for 0 as without fairness.
func (r *rules) place(key uint64) int {
	if key == 0 || !r.fair {
		return 0
	}
	return int(spread(key^r.seed) >> 58)
}

// stamped is a task with the time at which it came.
type stamped struct {
	Task
	at int64
}
