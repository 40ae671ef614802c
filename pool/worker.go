package pool

import (
	"cmp"
	"context"
	"reflect"
	"runtime"
	"sync"
	"time"
	"weak"
)

// A worker repeatedly takes a job and runs it. If there is none, the worker searches: it looks a few more times, yields
// in between, and then parks. While a worker searches, submitters wake no worker. A worker that finds a job stops
// searching; the last searching worker then wakes another if more jobs wait. Therefore, a worker is always on its way
// to a waiting job, and short jobs run on few workers, as in Go's scheduler. A worker looks at the queue once more
// after it has parked itself. Submitters look for parked workers after they have queued a job. At least one of the two
// therefore notices the other.

const (
	// searchRounds is how often a searching worker looks for jobs before it parks.
	searchRounds = 3
	// searchYield limits the yield between two searches. If a yield takes longer, the worker parks.
	searchYield = 20 * time.Microsecond
	// quantum is the time for which a worker runs jobs before it yields.
	quantum = time.Millisecond
)

// worker is a goroutine that runs jobs. Only the goroutine itself may use the fields. While the worker is parked, the
// goroutine that has removed it from the parked workers with popParked may also use them.
type worker struct {
	p    *Pool
	wake chan queuedTask // capacity 1; a task without a job makes the worker search, and closing makes it exit

	home      int  // shard to look at first
	searching bool // counted in Pool.searching

	yieldedAt int64
	startedAt int64 // when the current job started
	endedAt   int64 // when the last job ended

	job        queuedTask  // the current job
	last       lastOutcome // outcome of the last job, until a shard has counted it
	shed       []Task      // shed by takeQueuedJob, but not yet notified
	jobCtx     *jobContext
	idleJobCtx weak.Pointer[jobContext] // replaces jobCtx while the worker is parked, so that jobCtx can be freed
	ctxAddress uintptr                  // of the last task's context; 0 if the context is not a pointer
	ctxRepeats bool                     // the last two tasks had the same ctxAddress
}

type lastOutcome struct {
	finished, panicked, expired uint64 // 0 or 1
	wait, service               time.Duration
}

// countAndClearOutcomeLocked adds o to the shard's counters and then clears o. The caller must hold the shard's lock.
func (s *shard) countAndClearOutcomeLocked(o *lastOutcome) {
	if o.finished > 0 {
		s.counts.Wait.add(o.wait)
		s.counts.Service.add(o.service)
	}
	s.counts.Finished += o.finished
	s.counts.Panicked += o.panicked
	s.counts.Expired += o.expired
	*o = lastOutcome{}
}

// runUntilExit runs jobs until the worker must exit. If a job panics, a new goroutine continues to run jobs. The stack
// frame must stay small, because the garbage collector scans the stacks of all workers.
func (w *worker) runUntilExit() {
	running, returned := false, false
	defer func() {
		if !returned { // a job has panicked or called runtime.Goexit
			defer func() { go w.runUntilExit() }()
		}
		if running {
			v := recover()
			w.last.panicked = 1
			w.recordOutcomeAndClearJob()
			w.p.callPanickedHandlerIfSet(v)
		}
	}()
	for w.waitForNextJob() {
		ctx := w.p.ctx
		if w.job.Ctx != nil {
			if ctx = w.contextOrDropIfExpired(w.job.Task); ctx == nil {
				w.job.Task = Task{}
				continue
			}
		}
		running = true
		w.job.Job.Run(ctx)
		running = false
		w.recordOutcomeAndClearJob()
	}
	returned = true
	w.p.running.Done()
}

// waitForNextJob waits for a job and stores it in w.job. If the worker must exit, waitForNextJob returns false.
func (w *worker) waitForNextJob() (found bool) {
	p := w.p
	for w.job.Job == nil {
		if p.workerCount() > p.maxWorkers() {
			w.countOutcomeAndStopSearching()
			if p.decrementWorkersIfAbove(p.maxWorkers()) {
				p.wakeOrStartWorkerIfQueued()
				return false
			}
		}
		if w.takeQueuedJob(w.yieldAfterQuantumIfQueued()) {
			return true
		}
		if !w.searchThenPark() {
			return false
		}
	}
	w.startedAt = p.now()
	return true
}

// takeQueuedJob looks for a queued job. If there is one, it moves the job to w.job and returns true. It may also shed
// overdue jobs, and wake another worker or a waiting call of Submit.
func (w *worker) takeQueuedJob(now int64) (taken bool) {
	p := w.p
	mask := len(p.shards) - 1
	for round := 0; ; round++ {
		again := false
		for i := range p.shards {
			at := (w.home + i) & mask
			s := p.shards[at]
			if !s.nonEmpty.Load() {
				continue
			}
			if !s.mu.TryLock() {
				if again = true; round < lockTries {
					continue
				}
				s.mu.Lock()
			}
			s.countAndClearOutcomeLocked(&w.last)
			ok := s.shedOverdueAndDequeueLocked(now, &w.job, &w.shed)
			wasLast := ok && w.stopSearching() // under the lock, because searching workers count as space
			s.mu.Unlock()
			woken := p.wakeWaitingSubmit()
			woken = wasLast && p.wakeOrStartWorkerIfQueued() || woken
			if len(w.shed) > 0 || woken {
				again = again || len(w.shed) > 0
				p.notifyShedAndClear(&w.shed)
				now = p.now() // the calls above are not part of the job's duration
			}
			if ok {
				w.home, w.startedAt = (at+1)&mask, now
				return true
			}
		}
		if !again {
			return false
		}
	}
}

// yieldAfterQuantumIfQueued yields the processor if jobs are queued and the worker has not yielded for quantum or
// longer. It does not yield if most running jobs wait for something other than a processor. now is the current time.
func (w *worker) yieldAfterQuantumIfQueued() (now int64) {
	if now = w.endedAt; now == 0 {
		now = w.p.now()
	}
	// Otherwise, a worker with a job might wait for a processor until Go preempts this worker after 10 ms.
	if now-w.yieldedAt >= int64(quantum) && !w.p.blocking.Load() && w.p.anyQueued() {
		runtime.Gosched()
		now = w.p.now()
		w.yieldedAt = now
	}
	return now
}

func (w *worker) recordOutcomeAndClearJob() {
	w.endedAt = w.p.now()
	w.last.finished = 1
	w.last.wait, w.last.service = time.Duration(max(0, w.startedAt-w.job.submittedAt)), time.Duration(w.endedAt-w.startedAt)
	w.job.Task = Task{}
	if w.jobCtx != nil && w.jobCtx.endIfDoneCalled() {
		w.jobCtx = nil
	}
}

// searchThenPark searches for a queued job for a short time. If there is none, it parks the worker until the worker is
// woken. It returns false if the worker must exit.
func (w *worker) searchThenPark() (keepRunning bool) {
	p := w.p
	w.endedAt = 0
	if !w.searching && int64(p.searching.Load()) < max(1, p.procs/2) {
		w.startSearching()
	}
	for last, round := p.now(), 0; w.searching && round < searchRounds; round++ {
		if p.anyQueued() {
			return true
		}
		runtime.Gosched()
		now := p.now()
		if now-last > int64(searchYield) {
			break // many goroutines are runnable: parking is faster
		}
		last = now
	}
	if w.jobCtx != nil && w.ctxRepeats { // otherwise not worth the garbage collector's work for a weak pointer
		w.idleJobCtx = weak.Make(w.jobCtx)
	}
	w.jobCtx = nil
	w.countOutcomeAndStopSearching()
	if p.isClosed() {
		return p.anyQueued() || !p.decrementWorkersIfAbove(0)
	}
	p.pushParked(w)
	if p.anyQueued() || p.isClosed() {
		// A job was queued or the pool was closed after the search, so a worker must look again.
		if x := p.popParked(); x == w {
			w.startSearching()
			return true
		} else if x != nil {
			p.wakeToSearch(x)
		}
	}
	p.wakeWaitingSubmit()
	w.job, keepRunning = <-w.wake
	w.jobCtx, w.idleJobCtx = w.idleJobCtx.Value(), weak.Pointer[jobContext]{}
	w.yieldedAt = p.now()
	return keepRunning
}

func (w *worker) startSearching() {
	w.searching = true
	w.p.searching.Add(1)
}

func (w *worker) stopSearching() (wasLast bool) {
	if !w.searching {
		return false
	}
	w.searching = false
	return w.p.searching.Add(-1) == 0
}

func (w *worker) countOutcomeAndStopSearching() {
	if w.last != (lastOutcome{}) {
		s := w.p.shards[w.home]
		s.mu.Lock()
		s.countAndClearOutcomeLocked(&w.last)
		s.mu.Unlock()
	}
	w.stopSearching()
}

// contextOrDropIfExpired returns the context for the job of t. If t.Ctx has ended, it drops the job and returns nil.
func (w *worker) contextOrDropIfExpired(t Task) context.Context {
	if t.Ctx.Err() != nil {
		w.last.expired = 1
		w.p.notifyDropped(t.Job, &expiredError{context.Cause(t.Ctx)})
		return nil
	}
	address := uintptr(0)
	if v := reflect.ValueOf(t.Ctx); v.Kind() == reflect.Pointer {
		address = v.Pointer()
	}
	w.ctxRepeats, w.ctxAddress = address != 0 && address == w.ctxAddress, address
	if !w.ctxRepeats || w.jobCtx == nil || w.jobCtx.Context != t.Ctx {
		w.jobCtx = &jobContext{Context: t.Ctx, pool: w.p.ctx}
	}
	return w.jobCtx
}

// jobContext is the context passed to Job.Run. It ends when the task's context ends or when the pool cancels running
// jobs. If the job has called Done, the context also ends when Run returns.
type jobContext struct {
	context.Context
	pool context.Context

	mu     sync.Mutex
	merged context.Context // ends with Context or with pool; nil until Done is called
	end    func()          // ends merged
}

func (j *jobContext) Done() <-chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.merged == nil {
		merged, cancel := context.WithCancelCause(j.Context)
		stopWatching := context.AfterFunc(j.pool, func() { cancel(ErrClosed) })
		j.merged, j.end = merged, func() { stopWatching(); cancel(context.Canceled) }
	}
	return j.merged.Done()
}

func (j *jobContext) Err() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.merged != nil {
		return j.merged.Err()
	}
	return cmp.Or(j.Context.Err(), j.pool.Err())
}

func (j *jobContext) Value(key any) any {
	j.mu.Lock()
	defer j.mu.Unlock()
	from := j.Context
	if j.merged != nil {
		from = j.merged
	} else if j.Context.Err() == nil && j.pool.Err() != nil && j.pool.Value(key) != nil {
		from = j.pool
	}
	return from.Value(key)
}

func (j *jobContext) endIfDoneCalled() (ended bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.merged != nil {
		j.end()
	}
	return j.merged != nil
}
