package pool

import (
	"sync"
	"sync/atomic"
)

// The queue is split into shards to reduce contention between submitters and workers. A submitter uses the shard of its
// goroutine, or other shards if that is full. A worker takes a job from each shard in turn. A shard's lock is held for
// about 20 ns, and never while a job or a Dropper runs. If TryLock fails, the next shard is tried. Goroutines therefore
// rarely block, which matters to event loops that are locked to their threads.

// lockTries is the number of times that a goroutine tries the locks of all shards before it waits for a lock.
const lockTries = 4

const maxShedBatch = 32

type queuedTask struct {
	Task
	submittedAt int64 // when it was submitted
}

// shard is a part of the queue. mu guards all fields that are not atomic.
type shard struct {
	nonEmpty atomic.Bool
	full     atomic.Bool
	mu       sync.Mutex
	overload *overload

	closed     bool
	cap        int
	admitLimit int // jobs; cap, or less in an overload
	ring
	standing standingQueue

	accepted uint64
	tally    outcomeCounts

	refused atomic.Uint64
	_       [128]byte // keeps the next shard's lock on another cache line
}

type outcomeCounts struct {
	finished, panicked, expired, shed, dropped uint64
	wait, service                              Histogram
}

func (p *Pool) makeShards(capacity, count int) {
	p.shards = make([]shard, count)
	p.shift = 64
	for i := 1; i < count; i *= 2 {
		p.shift--
	}
	for i := range p.shards {
		s := &p.shards[i]
		s.overload, s.cap = &p.overload, capacity/count
		if i < capacity%count {
			s.cap++
		}
		s.setAdmitLimit(s.cap)
	}
}

func (s *shard) setAdmitLimit(maxJobs int) {
	s.admitLimit = min(maxJobs, s.cap)
	s.full.Store(s.n >= s.admitLimit)
}

// enqueue adds a job if there is space. extraCapacity raises the limit for this call.
func (s *shard) enqueue(t *Task, submittedAt int64, extraCapacity int) (added bool) {
	if s.n >= s.admitLimit+extraCapacity {
		return false
	}
	s.push(queuedTask{*t, submittedAt})
	s.accepted++
	if s.n == 1 {
		s.nonEmpty.Store(true)
	}
	if s.n == s.admitLimit {
		s.full.Store(true)
	}
	return true
}

// dequeue moves a job to dst: the newest one if takeNewest is set, otherwise the oldest. The queue must not be empty.
func (s *shard) dequeue(takeNewest bool, dst *queuedTask) {
	if s.n == s.admitLimit {
		s.full.Store(false)
	}
	s.pop(takeNewest, dst)
	if s.n == 0 {
		s.nonEmpty.Store(false)
		s.standing.since = 0
	}
}

// dequeueOrShedOverdue moves the next job to dst, and overdue jobs that it sheds to the list shed. It returns false if
// the queue is empty, and also after shedding maxShedBatch jobs. In the second case, call it again.
func (s *shard) dequeueOrShedOverdue(now int64, dst *queuedTask, shed *[]Task) (dequeued bool) {
	if s.n == 0 {
		return false
	}
	age, target := now-s.oldest(), s.overload.target.Load()
	over := s.overload.isActive(now)
	// In an overload, a single overdue job extends it.
	standing := s.standing.trackStandingQueue(age, now, s.overload) || over && age > target
	s.overload.startOrExtendOverloadIfStanding(standing, now)
	if over = s.overload.isActive(now); !over {
		s.dequeue(false, dst)
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
	s.dequeue(newest, dst)
	return true
}

// shedOverdue sheds at most maxShedBatch overdue jobs. It never sheds the last job of the queue.
func (s *shard) shedOverdue(now int64, shed *[]Task) {
	for s.overload.shedding && len(*shed) < maxShedBatch && s.n > 1 && now-s.oldest() > s.overload.target.Load() {
		var e queuedTask
		s.dequeue(false, &e)
		*shed = append(*shed, e.Task)
		s.tally.shed++
	}
}

// updateOverloadAndShedOverdue updates the overload state, and sheds overdue jobs if no worker takes jobs.
// oldestSubmittedAt is the time at which the oldest remaining job was submitted, or 0 if no job remains.
func (s *shard) updateOverloadAndShedOverdue(now int64, shed *[]Task) (oldestSubmittedAt int64) {
	if s.n == 0 {
		return 0
	}
	if s.standing.trackStandingQueue(now-s.oldest(), now, s.overload) {
		s.overload.startOrExtendOverloadIfStanding(true, now)
	}
	if s.overload.isActive(now) {
		s.shedOverdue(now, shed)
	}
	return s.oldest()
}

// ring is a queue in order of arrival with removal at both ends. Its size is a power of two.
type ring struct {
	entries  []queuedTask
	first, n int // n is the length
}

// minRingSize is the initial size of a ring. An empty ring larger than maxKeptRing is released.
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

func (r *ring) oldest() int64 { return r.entries[r.first].submittedAt }

func (r *ring) newest() int64 { return r.entries[r.index(r.n-1)].submittedAt }

func (r *ring) pop(takeNewest bool, dst *queuedTask) {
	i := r.first
	if r.n--; takeNewest {
		i = r.index(r.n)
	} else {
		r.first = r.index(1)
	}
	*dst, r.entries[i].Task = r.entries[i], Task{}
	if r.n == 0 && len(r.entries) > maxKeptRing {
		*r = ring{}
	}
}
