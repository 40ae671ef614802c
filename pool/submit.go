package pool

import (
	"context"
	"runtime"
	"slices"
	"unsafe"
)

// Submit submits job to run on a worker. If no worker or queue space is available, Submit waits until one is available
// or ctx ends. ctx is also the job's context; see [Task].
//
// If the pool is closed, the error is [ErrClosed]. If ctx ends before the job is accepted, the error wraps [ErrExpired]
// and context.Cause(ctx). Submit panics if job is nil.
func (p *Pool) Submit(ctx context.Context, job Func) error {
	return p.SubmitTask(Task{Job: job, Ctx: ctx})
}

// TrySubmit submits job to run on a worker, without waiting. If no worker or queue space is available, it returns
// [ErrFull]. If the pool is closed, it returns [ErrClosed]. TrySubmit panics if job is nil.
func (p *Pool) TrySubmit(job Func) error { return p.TrySubmitTask(Task{Job: job}) }

// SubmitTask is like Submit, but takes the job and its context from t.
func (p *Pool) SubmitTask(t Task) error { return p.submit(&t, true) }

// TrySubmitTask is like TrySubmit, but takes the job and its context from t. If t.Ctx has already ended, the error
// wraps [ErrExpired] and context.Cause(t.Ctx).
func (p *Pool) TrySubmitTask(t Task) error { return p.submit(&t, false) }

func (p *Pool) submit(t *Task, waitIfFull bool) error {
	if f, isFunc := t.Job.(Func); t.Job == nil || isFunc && f == nil {
		panic("pool: Task.Job is nil; expected a job")
	}
	if !waitIfFull && p.isFull() { // first, because it is the usual result in an overload
		return p.countAndTranslateRefusal(errNoCapacity)
	}
	err := t.checkContextClearingBackground()
	if err == nil {
		if err = errNoCapacity; p.overtakenSubmits.Load() == 0 {
			err = p.handToWorkerOrEnqueue(t)
		}
		for tries := 0; !waitIfFull && err == errNoCapacity && p.cfg.Queue == 0 && tries < returningWorkerTries; tries++ {
			runtime.Gosched()
			err = p.handToWorkerOrEnqueue(t)
		}
		if waitIfFull && err == errNoCapacity {
			err = p.waitForCapacityAndSubmit(t)
		}
	}
	return p.countAndTranslateRefusal(err)
}

// returningWorkerTries is how often TrySubmit tries again in a pool without a queue. The tries help if a worker has
// just finished its job and is about to become available.
const returningWorkerTries = 8

// checkContextClearingBackground returns an error if t.Ctx has ended. If t.Ctx is context.Background or context.TODO,
// which never end, it sets t.Ctx to nil.
func (t *Task) checkContextClearingBackground() error {
	switch {
	case t.Ctx == nil || t.Ctx == context.Background() || t.Ctx == context.TODO():
		t.Ctx = nil
	case t.Ctx.Err() != nil:
		return &expiredError{context.Cause(t.Ctx)}
	}
	return nil
}

func (p *Pool) countAndTranslateRefusal(err error) error {
	switch err {
	case nil:
	case errNoCapacity:
		p.wakeController()
		p.shards[p.shardByStackAddress()].refused.Add(1)
		return ErrFull
	case ErrClosed:
		p.refusedClosed.Add(1)
	default:
		p.late.Add(1)
	}
	return err
}

func (p *Pool) handToWorkerOrEnqueue(t *Task) error {
	if p.isClosed() {
		return ErrClosed
	}
	if p.searching.Load() == 0 && p.canWakeOrStartWorker() && !p.anyQueued() && p.handToWorker(t, 0) {
		return nil
	}
	err := p.enqueueInAnyShard(t)
	if err == errNoCapacity {
		extraWorkers := int64(0)
		if p.cfg.Queue == 0 { // an idle pool accepts jobs, even while its workers still return from their last jobs
			extraWorkers = min(p.procs, int64(p.cfg.Max)-p.limit.Load())
		}
		if p.handToWorker(t, extraWorkers) {
			return nil
		}
	}
	return err
}

// handToWorker passes a job to a parked worker or to a new worker. For this call, the pool may have extraWorkers more
// workers than its limit.
func (p *Pool) handToWorker(t *Task, extraWorkers int64) (accepted bool) {
	q := queuedTask{*t, p.now()}
	if w := p.popParked(); w != nil {
		w.wake <- q
	} else if !p.startWorkerIfAllowed(q, extraWorkers) {
		return false
	}
	p.handedOver.Add(1)
	return true
}

// enqueueInAnyShard adds a job to a shard that has space, and wakes or starts a worker. It tries the submitting
// goroutine's usual shard first. If no shard has space, it returns errNoCapacity.
func (p *Pool) enqueueInAnyShard(t *Task) error {
	now, first, mask := p.now(), p.shardByStackAddress(), len(p.shards)-1
	for round := 0; ; round++ {
		again := false
		for i := range p.shards {
			s := p.shards[(first+i)&mask]
			if s.full.Load() && (mask > 0 || p.searching.Load() == 0) {
				continue
			}
			if !s.mu.TryLock() {
				if again = true; round < lockTries {
					continue
				}
				s.mu.Lock()
			}
			extra := 0
			// With a single shard, every searching worker counts as space for one job.
			if mask == 0 {
				extra = int(p.searching.Load())
			}
			closed := s.closed
			added := !closed && s.enqueueLocked(t, now, extra)
			s.mu.Unlock()
			switch {
			case closed:
				return ErrClosed
			case added:
				p.wakeOrStartWorkerIfQueued()
				return nil
			}
		}
		if !again {
			return errNoCapacity
		}
	}
}

func (p *Pool) hasCapacity() bool {
	return p.canWakeOrStartWorker() || slices.ContainsFunc(p.shards, func(s *shard) bool { return !s.full.Load() })
}

// isFull reports whether the pool would reject a job now. If this is not certain, it returns false. It takes no locks.
func (p *Pool) isFull() bool {
	return p.searching.Load() == 0 && p.cfg.Queue > 0 && !p.hasCapacity() && !p.isClosed()
}

// shardByStackAddress returns the index of the shard that the calling goroutine should use. It derives the index from
// the address of the goroutine's stack, so that different goroutines are spread over the shards. The index is usually
// the same for all calls of a goroutine.
func (p *Pool) shardByStackAddress() int {
	var here byte
	return int(uint64(uintptr(unsafe.Pointer(&here))>>11) * 0x9E3779B97F4A7C15 >> p.shift)
}
