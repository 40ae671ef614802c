package pool

import (
	"sync"
	"sync/atomic"

	"github.com/myriad-go/myriad/internal/deque"
)

// The queue is split into shards to reduce contention between submitters and workers. A submitter uses the shard of its
// goroutine, or other shards if its shard is full. A worker takes a job from each shard in turn. A shard's lock is held
// for about 20 ns, and never while a job or a Dropper runs. If TryLock fails, the next shard is tried. Goroutines
// therefore rarely block, which matters to event loops that are locked to their threads.

const (
	maxShards   = 64
	minPerShard = 64 // jobs
	// lockTries is how often a goroutine tries the locks of all shards before it waits for a lock.
	lockTries    = 4
	maxShedBatch = 32
	// maxKeptCap is the maximum capacity, in jobs, that an empty shard retains.
	maxKeptCap = 1024
)

type queuedTask struct {
	Task
	submittedAt int64
}

// shard is a part of the pool's queue. Each shard has its own lock, mu, which guards all fields that are not atomic.
type shard struct {
	nonEmpty atomic.Bool
	full     atomic.Bool
	mu       sync.Mutex
	overload *overload

	closed     bool
	cap        int
	admitLimit int // maximum number of waiting jobs: the field cap, or less in an overload
	deque.Deque[queuedTask]
	overdueSince int64 // since when every check has found an overdue job; 0 if the last check found none
	counts       Stats // uses only the fields that count events, except Full, Late and Closed

	refused atomic.Uint64
	_       [128]byte // keeps the lock of another shard on another cache line
}

func (p *Pool) makeShards() {
	capacity, count := p.cfg.Queue, 1
	for p.shift = 64; count < 2*int(p.procs) && count < maxShards && capacity/(2*count) >= minPerShard; p.shift-- {
		count *= 2
	}
	for i := range count {
		s := &shard{overload: &p.overload, cap: (capacity + i) / count}
		s.setAdmitLimit(s.cap)
		p.shards = append(p.shards, s)
	}
}

func (s *shard) setAdmitLimit(maxJobs int) {
	s.admitLimit = min(maxJobs, s.cap)
	s.full.Store(s.Len() >= s.admitLimit)
}

// enqueueLocked adds a job if there is space. For this call, the shard may hold extraCapacity more jobs than its limit.
// The caller must hold s.mu.
func (s *shard) enqueueLocked(t *Task, submittedAt int64, extraCapacity int) (added bool) {
	if s.Len() >= s.admitLimit+extraCapacity {
		return false
	}
	s.PushBack(queuedTask{*t, submittedAt})
	s.counts.Accepted++
	if s.Len() == 1 {
		s.nonEmpty.Store(true)
	}
	if s.Len() == s.admitLimit {
		s.full.Store(true)
	}
	return true
}

// dequeueLocked removes a job from the shard and stores it in *dst. The job is the newest job if takeNewest is true,
// and the oldest job otherwise. The shard must not be empty.
func (s *shard) dequeueLocked(takeNewest bool, dst *queuedTask) {
	if s.Len() == s.admitLimit {
		s.full.Store(false)
	}
	if takeNewest {
		*dst = *s.At(s.Len() - 1)
		s.PopBack()
	} else {
		*dst = *s.At(0)
		s.PopFront()
	}
	if s.Len() == 0 {
		s.nonEmpty.Store(false)
		s.overdueSince = 0
		if s.Cap() > maxKeptCap {
			s.Deque = deque.Deque[queuedTask]{}
		}
	}
}

// shedOverdueAndDequeueLocked removes the next job from the shard and stores it in *dst. During an overload, it also
// removes overdue jobs, which have waited longer than the overload target, and adds them to *shed. If the shard is
// empty or
// *shed is full, it returns false. If *shed is full, the caller must empty it and try again.
func (s *shard) shedOverdueAndDequeueLocked(now int64, dst *queuedTask, shed *[]Task) (dequeued bool) {
	s.updateOverloadAndShedOverdueLocked(now, shed)
	if s.Len() == 0 {
		return false
	}
	newest, target := false, s.overload.target.Load()
	if s.overload.isActive(now) {
		next := s.Front().submittedAt
		if newest = s.overload.newestFirst && now-next > target; newest {
			next = s.At(s.Len() - 1).submittedAt
		}
		if len(*shed) >= maxShedBatch && s.Len() > 1 && now-next > target {
			return false
		}
	}
	s.dequeueLocked(newest, dst)
	return true
}

// updateOverloadAndShedOverdueLocked starts an overload if the shard has contained overdue jobs for the time
// overload.interval without a break. Overdue jobs have waited longer than the overload target. During an overload, it
// removes overdue jobs from the shard and adds them to *shed.
func (s *shard) updateOverloadAndShedOverdueLocked(now int64, shed *[]Task) {
	o, target := s.overload, s.overload.target.Load()
	if s.Len() == 0 || now-s.Front().submittedAt <= target {
		s.overdueSince = 0
		return
	}
	if s.overdueSince == 0 {
		s.overdueSince = now
	}
	// As in CoDel, an overload starts when jobs were overdue for a whole interval.
	if now-s.overdueSince >= o.interval || o.isActive(now) {
		o.startOrExtend(now)
	}
	for o.shedding && o.isActive(now) && len(*shed) < maxShedBatch && s.Len() > 1 && now-s.Front().submittedAt > target {
		*shed = append(*shed, s.Front().Task)
		s.dequeueLocked(false, &queuedTask{})
		s.counts.Shed++
	}
}
