package pool

import (
	"context"
	"runtime"
	"unsafe"
)

// Submit has job run by a worker. It waits until there is room, or until ctx ends, which
// is the job's context, too. Its error is [ErrClosed], or [ErrExpired] with the cause of
// ctx's end: then the job does not run. It panics if job is nil.
func (p *Pool) Submit(ctx context.Context, job Func) error {
	return p.SubmitTask(Task{Job: job.job(), Ctx: ctx})
}

// TrySubmit has job run by a worker, or says at once why not: [ErrFull] or [ErrClosed].
// It panics if job is nil.
func (p *Pool) TrySubmit(job Func) error { return p.TrySubmitTask(Task{Job: job.job()}) }

// SubmitTask is Submit for a task. It waits until t.Ctx ends.
func (p *Pool) SubmitTask(t Task) error {
	err := t.validate()
	if err == nil {
		if err = errNoCapacity; p.newcomersWait.Load() == 0 {
			err = p.acceptTask(&t)
		}
		if err == errNoCapacity {
			err = p.waitForCapacity(&t)
		}
	}
	return p.recordRefusal(err)
}

// TrySubmitTask is TrySubmit for a task. If there is room, but t.Ctx has ended, its error
// is [ErrExpired] with the cause.
func (p *Pool) TrySubmitTask(t Task) error {
	if t.Job != nil && p.isFull() { // the answer to most in an overload, so the first question
		return p.recordRefusal(errNoCapacity)
	}
	err := t.validate()
	if err == nil {
		if err = errNoCapacity; p.newcomersWait.Load() == 0 {
			err = p.acceptTask(&t)
		}
		for range returningWorkerTries {
			if err != errNoCapacity || p.cfg.Queue > 0 {
				break
			}
			runtime.Gosched()
			err = p.acceptTask(&t)
		}
	}
	return p.recordRefusal(err)
}

// returningWorkerTries is how often a TrySubmit looks again for a worker where nothing can
// wait: one may just be returning from the job whose end was the reason for this one.
const returningWorkerTries = 8

// These contexts never end, and need no watching.
var background, todo = context.Background(), context.TODO()

// validate panics for a task without a job, and refuses one whose context has ended.
func (t *Task) validate() error {
	switch {
	case t.Job == nil:
		panic("pool: a task without a job")
	case t.Ctx == nil:
	case t.Ctx == background || t.Ctx == todo:
		t.Ctx = nil
	case t.Ctx.Err() != nil:
		return &expiredError{context.Cause(t.Ctx)}
	}
	return nil
}

func (p *Pool) recordRefusal(err error) error {
	switch err {
	case nil:
	case errNoCapacity:
		p.wakeController()
		p.shards[p.localShard()].refused.Add(1)
		return ErrFull
	case ErrClosed:
		p.refusedClosed.Add(1)
	default:
		p.late.Add(1)
	}
	return err
}

// acceptTask hands a job to a worker, or queues it.
func (p *Pool) acceptTask(t *Task) error {
	if p.closed.Load() {
		return ErrClosed
	}
	if p.needsWorker() && !p.anyQueued() && p.handToWorker(t, 0) {
		return nil
	}
	now := p.now()
	if err := p.enqueue(t, now, false); err != errNoCapacity {
		return err
	}
	if p.handToWorker(t, p.extraWorkers()) {
		return nil
	}
	if p.searching.Load() == 0 || len(p.shards) > 1 {
		return errNoCapacity
	}
	// Where there is little room or none, workers that search count as room.
	return p.enqueue(t, now, true)
}

// needsWorker reports whether a submitter is to see to a worker for its job: none
// searches, and one can be had.
func (p *Pool) needsWorker() bool { return p.searching.Load() == 0 && p.hasSpareWorker() }

// extraWorkers is how many workers above the limit there may be for jobs that find no room
// where nothing can wait: workers that are just returning from a job can't take another
// yet, and an idle pool must not refuse one.
func (p *Pool) extraWorkers() int64 {
	if p.cfg.Queue > 0 {
		return 0
	}
	return max(0, min(p.procs, int64(p.cfg.Max)-p.limit.Load()))
}

// handToWorker hands a job to a parked worker, or to a new one.
func (p *Pool) handToWorker(t *Task, extraWorkers int64) bool {
	if !p.hasSpareWorker() && extraWorkers == 0 {
		return false
	}
	o := wakeOrder{queuedTask: queuedTask{*t, p.now()}}
	if w := p.popParked(); w != nil {
		w.wake <- o
	} else if !p.startWorker(o, extraWorkers) {
		return false
	}
	p.handedOver.Add(1)
	return true
}

// enqueue queues a job in the first shard that takes it, from the submitter's own on.
// With toSearcher there is room for as many more as workers search.
func (p *Pool) enqueue(t *Task, now int64, forSearcher bool) error {
	first, mask := p.localShard(), len(p.shards)-1
	for round := 0; ; round++ {
		again := false
		for i := range p.shards {
			s := &p.shards[(first+i)&mask]
			if s.full.Load() && !forSearcher {
				continue
			}
			if !s.mu.TryLock() {
				if again = true; round < lockTries {
					continue
				}
				s.mu.Lock()
			}
			extra := 0
			if forSearcher {
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
					p.wakeWorker()
				}
				return nil
			}
		}
		if !again {
			return errNoCapacity
		}
	}
}

// hasCapacity reports whether there is room for a job: in the queue, or with a worker.
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

// isFull reports, for the price of a few loads, that no job can be accepted now:
// in an overload that is the answer to most.
func (p *Pool) isFull() bool {
	return p.searching.Load() == 0 && p.cfg.Queue > 0 && !p.hasCapacity() && !p.closed.Load()
}

// localShard is the shard of the running goroutine. Any would do, as long as it is often
// the same for one goroutine and mostly not for two: the address of its stack says that
// for nothing, spread by Fibonacci hashing.
func (p *Pool) localShard() int {
	var here byte
	return int(uint64(uintptr(unsafe.Pointer(&here))>>11) * 0x9E3779B97F4A7C15 >> p.shift)
}
