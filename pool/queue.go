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

// maxShedBatch is how many jobs are shed at a time.
const maxShedBatch = 32

// queuedTask is a job in the queue.
type queuedTask struct {
	Task
	submittedAt int64 // when it was submitted
}

// shard is a part of the queue. Its lock guards all but the atomic fields.
type shard struct {
	nonEmpty atomic.Bool
	full     atomic.Bool
	mu       sync.Mutex
	overload *overload

	closed     bool
	cap        int
	admitLimit int // for how many jobs: cap, or fewer in an overload
	ring
	standing standingQueue

	accepted uint64
	tally    outcomeCounts

	refused atomic.Uint64
	_       [128]byte // the next shard's lock is on another cache line
}

// outcomeCounts counts the outcomes of jobs.
type outcomeCounts struct {
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
		s.setAdmitLimit(s.cap)
	}
}

// setAdmitLimit sets how many jobs may wait, up to the capacity.
func (s *shard) setAdmitLimit(n int) {
	s.admitLimit = min(n, s.cap)
	s.full.Store(s.n >= s.admitLimit)
}

// enqueue appends a job if there is room; extra is so much more.
func (s *shard) enqueue(t *Task, at int64, extraCapacity int) bool {
	if s.n >= s.admitLimit+extraCapacity {
		return false
	}
	s.push(queuedTask{*t, at})
	s.accepted++
	if s.n == 1 {
		s.nonEmpty.Store(true)
	}
	if s.n == s.admitLimit {
		s.full.Store(true)
	}
	return true
}

// dequeue takes the oldest job, or the newest. There is one.
func (s *shard) dequeue(newest bool, to *queuedTask) {
	if s.n == s.admitLimit {
		s.full.Store(false)
	}
	s.pop(newest, to)
	if s.n == 0 {
		s.nonEmpty.Store(false)
		s.standing.since = 0
	}
}

// dequeueNext takes the next job to run, and appends those that it sheds on the way to shed.
// When as many as may be at a time were shed and the next one is too old itself, it
// takes none: the caller comes again.
func (s *shard) dequeueNext(now int64, to *queuedTask, shed *[]Task) bool {
	if s.n == 0 {
		return false
	}
	age, target := now-s.oldest(), s.overload.target.Load()
	over := s.overload.isActive(now)
	// Once overloaded, one job that is too old keeps it so.
	standing := s.standing.observeAge(age, now, s.overload) || over && age > target
	s.overload.extendIfStanding(standing, now)
	if over = s.overload.isActive(now); !over {
		s.dequeue(false, to)
		return true
	}
	s.shedOverdue(now, shed)
	next := s.oldest()
	newest := s.overload.newestFirst && now-next > target
	if newest {
		next = s.newest()
	}
	if len(*shed) >= maxShedBatch && s.n > 1 && now-next > target {
		return false
	}
	s.dequeue(newest, to)
	return true
}

// shedOverdue sheds jobs that are too old, up to maxShedBatch, but never the last one: that may as
// well run.
func (s *shard) shedOverdue(now int64, shed *[]Task) {
	for s.overload.shedding && len(*shed) < maxShedBatch && s.n > 1 && now-s.oldest() > s.overload.target.Load() {
		var e queuedTask
		s.dequeue(false, &e)
		*shed = append(*shed, e.Task)
		s.tally.shed++
	}
}

// sweepOverdue sheds what is too old when nobody takes jobs. It returns when the oldest job
// that is left came, 0 for none.
func (s *shard) sweepOverdue(now int64, shed *[]Task) (oldest int64) {
	if s.n == 0 {
		return 0
	}
	if s.standing.observeAge(now-s.oldest(), now, s.overload) {
		s.overload.extendIfStanding(true, now)
	}
	if s.overload.isActive(now) {
		s.shedOverdue(now, shed)
	}
	return s.oldest()
}

// ring is a queue in order of arrival that can be popped at both ends. The shard bounds
// its length. Its size is a power of two.
type ring struct {
	entries  []queuedTask
	first, n int // n is the length
}

// Rings grow from minRingSize, and one larger than maxKeptRing is freed when it is empty.
const minRingSize, maxKeptRing = 16, 1024

func (r *ring) index(i int) int { return (r.first + i) & (len(r.entries) - 1) }

func (r *ring) push(e queuedTask) {
	if r.n == len(r.entries) {
		larger := make([]queuedTask, max(2*r.n, minRingSize))
		copy(larger[copy(larger, r.entries[r.first:]):], r.entries[:r.first])
		r.entries, r.first = larger, 0
	}
	r.entries[r.index(r.n)] = e
	r.n++
}

// oldest and newest are when the jobs at the ends came. There is one.
func (r *ring) oldest() int64 { return r.entries[r.first].submittedAt }
func (r *ring) newest() int64 { return r.entries[r.index(r.n-1)].submittedAt }

func (r *ring) pop(newest bool, to *queuedTask) {
	i := r.first
	if r.n--; newest {
		i = r.index(r.n)
	} else {
		r.first = r.index(1)
	}
	*to, r.entries[i].Task = r.entries[i], Task{}
	if r.n == 0 && len(r.entries) > maxKeptRing {
		*r = ring{}
	}
}
