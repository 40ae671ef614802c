package pool

import (
	"context"
	"runtime"
	"unsafe"
)

// Submit runs job on a worker. It waits for space until ctx ends; ctx is also the job's context. If the job will not
// run, the error is [ErrClosed] or [ErrExpired], which wraps the cause of ctx's end. Submit panics if job is nil.
func (p *Pool) Submit(ctx context.Context, job Func) error {
	return p.SubmitTask(Task{Job: job.toJobOrNil(), Ctx: ctx})
}

// TrySubmit runs job on a worker. If no worker or queue space is available, it immediately returns [ErrFull], or
// [ErrClosed] if the pool is closed. It panics if job is nil.
func (p *Pool) TrySubmit(job Func) error { return p.TrySubmitTask(Task{Job: job.toJobOrNil()}) }

// SubmitTask is like Submit for a task, and waits until t.Ctx ends.
func (p *Pool) SubmitTask(t Task) error {
	err := t.checkJobAndContext()
	if err == nil {
		if err = errNoCapacity; p.newcomersWait.Load() == 0 {
			err = p.handToWorkerOrEnqueue(&t)
		}
		if err == errNoCapacity {
			err = p.waitForCapacityAndSubmit(&t)
		}
	}
	return p.countAndTranslateRefusal(err)
}

// TrySubmitTask is like TrySubmit for a task. If t.Ctx has ended, the error is [ErrExpired], which wraps the cause.
func (p *Pool) TrySubmitTask(t Task) error {
	if t.Job != nil && p.isFull() { // first, because it is the usual result in an overload
		return p.countAndTranslateRefusal(errNoCapacity)
	}
	err := t.checkJobAndContext()
	if err == nil {
		if err = errNoCapacity; p.newcomersWait.Load() == 0 {
			err = p.handToWorkerOrEnqueue(&t)
		}
		for range returningWorkerTries {
			if err != errNoCapacity || p.cfg.Queue > 0 {
				break
			}
			runtime.Gosched()
			err = p.handToWorkerOrEnqueue(&t)
		}
	}
	return p.countAndTranslateRefusal(err)
}

// returningWorkerTries is the number of times that TrySubmit looks again for a worker in a pool without a queue. A
// finished job often causes the next submission a moment before the worker of the finished job is available again.
const returningWorkerTries = 8

// background and todo are contexts that never end and need not be watched.
var background, todo = context.Background(), context.TODO()

// checkJobAndContext panics if the task has no job, and returns an error if its context has ended.
func (t *Task) checkJobAndContext() error {
	switch {
	case t.Job == nil:
		panic("pool: the task has no job")
	case t.Ctx == nil:
	case t.Ctx == background || t.Ctx == todo:
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
	if p.closed.Load() {
		return ErrClosed
	}
	if p.needsWorker() && !p.anyQueued() && p.handToWorker(t, 0) {
		return nil
	}
	now := p.now()
	if err := p.enqueueInAnyShard(t, now, false); err != errNoCapacity {
		return err
	}
	if p.handToWorker(t, p.extraWorkersWithoutQueue()) {
		return nil
	}
	if p.searching.Load() == 0 || len(p.shards) > 1 {
		return errNoCapacity
	}
	// With little or no queue, searching workers count as space.
	return p.enqueueInAnyShard(t, now, true)
}

func (p *Pool) needsWorker() bool { return p.searching.Load() == 0 && p.canWakeOrStartWorker() }

// extraWorkersWithoutQueue returns how many workers may be started above the limit if no job can be queued. An idle
// pool must not reject a job, even while its workers are still returning from their last jobs.
func (p *Pool) extraWorkersWithoutQueue() int64 {
	if p.cfg.Queue > 0 {
		return 0
	}
	return max(0, min(p.procs, int64(p.cfg.Max)-p.limit.Load()))
}

func (p *Pool) handToWorker(t *Task, extraWorkers int64) (accepted bool) {
	if !p.canWakeOrStartWorker() && extraWorkers == 0 {
		return false
	}
	o := wakeOrder{queuedTask: queuedTask{*t, p.now()}}
	if w := p.popParked(); w != nil {
		w.wake <- o
	} else if !p.startWorkerIfAllowed(o, extraWorkers) {
		return false
	}
	p.handedOver.Add(1)
	return true
}

// enqueueInAnyShard queues a job in the first shard with space, beginning with the submitter's own shard. With
// useSearcherCapacity, every searching worker adds space for one job.
func (p *Pool) enqueueInAnyShard(t *Task, now int64, useSearcherCapacity bool) error {
	first, mask := p.shardByStackAddress(), len(p.shards)-1
	for round := 0; ; round++ {
		again := false
		for i := range p.shards {
			s := &p.shards[(first+i)&mask]
			if s.full.Load() && !useSearcherCapacity {
				continue
			}
			if !s.mu.TryLock() {
				if again = true; round < lockTries {
					continue
				}
				s.mu.Lock()
			}
			extra := 0
			if useSearcherCapacity {
				extra = int(p.searching.Load())
			}
			closed := s.closed
			added := !closed && s.enqueue(t, now, extra)
			s.mu.Unlock()
			switch {
			case closed:
				return ErrClosed
			case added:
				if p.searching.Load() == 0 {
					p.wakeOrStartWorker()
				}
				return nil
			}
		}
		if !again {
			return errNoCapacity
		}
	}
}

func (p *Pool) hasCapacity() bool {
	if p.parked.count.Load() > 0 || p.workerCount() < p.maxWorkers() {
		return true
	}
	for i := range p.shards {
		if !p.shards[i].full.Load() {
			return true
		}
	}
	return false
}

// isFull reports whether a few atomic loads show that no job can be accepted now.
func (p *Pool) isFull() bool {
	return p.searching.Load() == 0 && p.cfg.Queue > 0 && !p.hasCapacity() && !p.closed.Load()
}

// shardByStackAddress returns the shard of the running goroutine. The stack's address, spread by Fibonacci hashing,
// usually gives a goroutine the same shard in every call, and other goroutines other shards.
func (p *Pool) shardByStackAddress() int {
	var here byte
	return int(uint64(uintptr(unsafe.Pointer(&here))>>11) * 0x9E3779B97F4A7C15 >> p.shift)
}
