package pool

import (
	"sync"
	"sync/atomic"
)

// The queue is split into shards so that submitters and workers seldom meet. A
// submitter uses the shard of its goroutine, and others when that is full; a worker
// takes a job from each in turn. A shard's lock is held for some 20 ns
// and never while a job or a Dropper is called. It is taken with TryLock, and the next
// shard is tried when that fails: so hardly anybody sleeps for it, which matters to
// event loops that are locked to their threads.

// lockTries is how often all locked shards are tried again before one is waited for.
const lockTries = 4

// maxShed is how many jobs are shed at a time.
const maxShed = 32

// entry is a job in the queue.
type entry struct {
	Task
	at int64 // when it was submitted
}

// shard is a part of the queue. Its lock guards all but the atomic fields.
type shard struct {
	nonEmpty atomic.Bool
	full     atomic.Bool
	mu       sync.Mutex
	overload *overload

	closed bool
	cap    int
	room   int // for how many jobs: cap, or fewer in an overload
	ring
	standing standing

	accepted uint64
	tally    tally

	refused atomic.Uint64
	_       [128]byte // the next shard's lock is on another cache line
}

// tally counts the outcomes of jobs.
type tally struct {
	finished, panicked, expired, shed, dropped uint64
	wait, service                              Histogram
}

// makeShards makes n shards, with room for capacity jobs together.
func (p *Pool) makeShards(capacity, n int) {
	p.shards = make([]shard, n)
	p.shift = 64
	for i := 1; i < n; i *= 2 {
		p.shift--
	}
	for i := range p.shards {
		s := &p.shards[i]
		s.overload, s.cap = &p.overload, capacity/n
		if i < capacity%n {
			s.cap++
		}
		s.setRoom(s.cap)
	}
}

// setRoom sets how many jobs may wait, up to the capacity.
func (s *shard) setRoom(n int) {
	s.room = min(n, s.cap)
	s.full.Store(s.n >= s.room)
}

// add appends a job if there is room; extra is so much more.
func (s *shard) add(t *Task, at int64, extra int) bool {
	if s.n >= s.room+extra {
		return false
	}
	s.push(entry{*t, at})
	s.accepted++
	if s.n == 1 {
		s.nonEmpty.Store(true)
	}
	if s.n == s.room {
		s.full.Store(true)
	}
	return true
}

// remove takes the oldest job, or the newest. There is one.
func (s *shard) remove(newest bool, to *entry) {
	if s.n == s.room {
		s.full.Store(false)
	}
	s.pop(newest, to)
	if s.n == 0 {
		s.nonEmpty.Store(false)
		s.standing.since = 0
	}
}

// take takes the next job to run, and appends those that it sheds on the way to shed.
// When as many as may be at a time were shed and the next one is too old itself, it
// takes none: the caller comes again.
func (s *shard) take(now int64, to *entry, shed *[]Task) bool {
	if s.n == 0 {
		return false
	}
	age, target := now-s.oldest(), s.overload.target.Load()
	over := s.overload.active(now)
	// Once overloaded, one job that is too old keeps it so.
	standing := s.standing.observe(age, now, s.overload) || over && age > target
	s.overload.observe(standing, now)
	if over = s.overload.active(now); !over {
		s.remove(false, to)
		return true
	}
	s.shed(now, shed)
	next := s.oldest()
	newest := s.overload.newestFirst && now-next > target
	if newest {
		next = s.newest()
	}
	if len(*shed) >= maxShed && s.n > 1 && now-next > target {
		return false
	}
	s.remove(newest, to)
	return true
}

// shed sheds jobs that are too old, up to maxShed, but never the last one: that may as
// well run.
func (s *shard) shed(now int64, shed *[]Task) {
	for s.overload.shedding && len(*shed) < maxShed && s.n > 1 && now-s.oldest() > s.overload.target.Load() {
		var e entry
		s.remove(false, &e)
		*shed = append(*shed, e.Task)
		s.tally.shed++
	}
}

// sweep sheds what is too old when nobody takes jobs. It returns when the oldest job
// that is left came, 0 for none.
func (s *shard) sweep(now int64, shed *[]Task) (oldest int64) {
	if s.n == 0 {
		return 0
	}
	if s.standing.observe(now-s.oldest(), now, s.overload) {
		s.overload.observe(true, now)
	}
	if s.overload.active(now) {
		s.shed(now, shed)
	}
	return s.oldest()
}

// ring is a queue in order of arrival that can be popped at both ends. The shard bounds
// its length. Its size is a power of two.
type ring struct {
	entries  []entry
	first, n int // n is the length
}

// Rings grow from minRing, and one larger than keptRing is freed when it is empty.
const minRing, keptRing = 16, 1024

func (r *ring) at(i int) int { return (r.first + i) & (len(r.entries) - 1) }

func (r *ring) push(e entry) {
	if r.n == len(r.entries) {
		larger := make([]entry, max(2*r.n, minRing))
		copy(larger[copy(larger, r.entries[r.first:]):], r.entries[:r.first])
		r.entries, r.first = larger, 0
	}
	r.entries[r.at(r.n)] = e
	r.n++
}

// oldest and newest are when the jobs at the ends came. There is one.
func (r *ring) oldest() int64 { return r.entries[r.first].at }
func (r *ring) newest() int64 { return r.entries[r.at(r.n-1)].at }

func (r *ring) pop(newest bool, to *entry) {
	i := r.first
	if r.n--; newest {
		i = r.at(r.n)
	} else {
		r.first = r.at(1)
	}
	*to, r.entries[i].Task = r.entries[i], Task{}
	if r.n == 0 && len(r.entries) > keptRing {
		*r = ring{}
	}
}
