package pool

import (
	"context"
	"reflect"
	"runtime"
	"sync"
	"time"
	"weak"
)

// A worker repeatedly takes a job and runs it. If there is none, the worker searches: it looks a few more times, yields
// in between, and then parks. While a worker searches, submitters wake no worker. A worker that finds a job stops
// searching; the last searching worker then wakes another if more jobs wait. A worker is therefore always on its way to
// a waiting job, and short jobs run on few workers. (Go's scheduler manages its threads in the same way.)
//
// A worker looks at the queue once more after it has parked itself. Submitters look for parked workers after they have
// queued a job. At least one of the two therefore notices the other.

const (
	// searchRounds is the number of times that a searching worker looks again before it parks.
	searchRounds = 3
	// searchYield is the maximum duration of a yield of a searching worker. A longer yield means that many goroutines
	// are runnable, and the worker stops searching.
	searchYield = 20 * time.Microsecond
	// quantum is the time for which a worker runs jobs before it yields. Without a yield, another worker that already
	// has a job might wait for a processor until Go preempts this worker after 10 ms. A shorter quantum would be worse
	// with thousands of runnable goroutines. If jobs block, workers do not yield.
	quantum = time.Millisecond
)

// worker is a goroutine that runs jobs. Only this goroutine may access the fields, except that a goroutine that has
// popped a parked worker may access that worker's fields until it wakes the worker.
type worker struct {
	p    *Pool
	wake chan wakeOrder // capacity 1

	home      int  // shard to look at first
	searching bool // counted in Pool.searching

	yieldedAt int64 // when it last yielded
	startedAt int64 // when the current job started
	endedAt   int64 // when the last job ended

	job        queuedTask // the job last taken
	tally      workerTally
	shed       []Task // shed by the last takeQueuedJob
	jobCtx     *jobContext
	idleJobCtx weak.Pointer[jobContext] // jobCtx while the worker is parked, which must not retain it
}

// wakeOrder tells a woken worker to run a job or to exit. The zero value tells it to search for jobs.
type wakeOrder struct {
	queuedTask
	exit bool
}

type workerTally struct {
	finished, panicked, expired uint64
	timed                       bool // wait and service are those of one job
	wait, service               time.Duration
}

// addWorkerTallyAndReset moves a worker's counts to the shard. The caller holds the shard's lock.
func (s *shard) addWorkerTallyAndReset(t *workerTally) {
	if *t == (workerTally{}) {
		return
	}
	s.tally.finished += t.finished
	s.tally.panicked += t.panicked
	s.tally.expired += t.expired
	if t.timed {
		s.tally.wait.add(t.wait)
		s.tally.service.add(t.service)
	}
	*t = workerTally{}
}

// runUntilExit runs on the worker's goroutine. If a job calls runtime.Goexit, a new goroutine replaces the old one.
func (w *worker) runUntilExit(firstOrder wakeOrder) {
	returned := false
	defer func() {
		if !returned {
			w.p.running.Go(func() { w.runUntilExit(wakeOrder{}) })
		}
	}()
	for w.runJobsUntilPanicOrExit(&firstOrder) {
	}
	returned = true
}

// runJobsUntilPanicOrExit runs jobs until the worker must exit or a job panics. panicked is true after a panic.
func (w *worker) runJobsUntilPanicOrExit(o *wakeOrder) (panicked bool) {
	running := false
	defer func() {
		if running {
			v := recover()
			w.tally.panicked++
			w.recordFinishedAndClearJob()
			w.p.callPanickedHandlerIfSet(v)
			panicked = true
		}
	}()
	for {
		if !w.waitForNextJob(o) {
			return false
		}
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
		w.recordFinishedAndClearJob()
	}
}

func (w *worker) waitForNextJob(o *wakeOrder) (found bool) {
	p := w.p
	for {
		if o.Job != nil {
			w.job, *o = o.queuedTask, wakeOrder{}
			w.startJobTimer(p.now())
			return true
		}
		if p.workerCount() > p.maxWorkers() && w.exitIfOverLimit() {
			return false
		}
		if w.takeQueuedJob(w.yieldAfterQuantumIfQueued()) {
			return true
		}
		if *o = w.searchThenPark(); o.exit {
			return false
		}
	}
}

// takeQueuedJob takes a job from the queue. It may also wake workers and a waiting Submit.
func (w *worker) takeQueuedJob(now int64) (taken bool) {
	p := w.p
	mask := len(p.shards) - 1
	for round := 0; ; round++ {
		again := false
		for i := range p.shards {
			at := (w.home + i) & mask
			s := &p.shards[at]
			if !s.nonEmpty.Load() {
				continue
			}
			if !s.mu.TryLock() {
				if again = true; round < lockTries {
					continue
				}
				s.mu.Lock()
			}
			s.addWorkerTallyAndReset(&w.tally)
			ok := s.dequeueOrShedOverdue(now, &w.job, &w.shed)
			more := false
			if ok && w.searching { // under the lock, because searching workers count as space
				w.searching = false
				more = p.searching.Add(-1) == 0
			}
			s.mu.Unlock()
			if ok {
				w.home = (at + 1) & mask
				if w.notifyShedAndWakeSubmitters(more) {
					now = p.now() // so that the job's time does not include the above
				}
				w.startJobTimer(now)
				return true
			}
			if len(w.shed) > 0 { // there are more to shed
				w.notifyShedAndWakeSubmitters(false)
				now, again = p.now(), true
			}
		}
		if !again {
			return false
		}
	}
}

// notifyShedAndWakeSubmitters notifies shed jobs and wakes a Submit that waits for space. If wakeWorkerIfQueued is set
// and jobs wait, it also wakes another worker. didWork reports whether anything was done.
func (w *worker) notifyShedAndWakeSubmitters(wakeWorkerIfQueued bool) (didWork bool) {
	p := w.p
	if didWork = len(w.shed) > 0; didWork {
		w.shed = p.notifyShedAndClear(w.shed)
	}
	didWork = p.wakeWaitingSubmit() || didWork
	if wakeWorkerIfQueued && p.searching.Load() == 0 && p.anyQueued() {
		p.wakeOrStartWorker()
		didWork = true
	}
	return didWork
}

// yieldAfterQuantumIfQueued yields the processor if the quantum has passed, jobs wait and running jobs do not block.
// now is the current time.
func (w *worker) yieldAfterQuantumIfQueued() (now int64) {
	now = w.endedAt
	if now == 0 {
		now = w.p.now()
	}
	if now-w.yieldedAt >= int64(quantum) && !w.p.blocking.Load() && w.p.anyQueued() {
		runtime.Gosched()
		now = w.p.now()
		w.yieldedAt = now
	}
	return now
}

func (w *worker) startJobTimer(now int64) {
	w.startedAt = now
	w.tally.timed, w.tally.wait = true, time.Duration(max(0, now-w.job.submittedAt))
}

func (w *worker) recordFinishedAndClearJob() {
	w.endedAt = w.p.now()
	w.tally.service = time.Duration(w.endedAt - w.startedAt)
	w.job.Task = Task{}
	w.tally.finished++
	if w.jobCtx != nil {
		w.jobCtx.cancelMergedContext()
	}
}

// searchThenPark searches for a job. If there is none, it parks the worker, and returns the order that wakes it.
func (w *worker) searchThenPark() wakeOrder {
	p := w.p
	w.endedAt = 0
	if !w.searching && p.searching.Load() < p.searchers {
		w.startSearching()
	}
	if w.searching {
		rounds := 0
		for last := p.now(); ; {
			if p.anyQueued() {
				return wakeOrder{}
			}
			runtime.Gosched()
			now := p.now()
			if rounds++; rounds == searchRounds || now-last > int64(searchYield) {
				break // many goroutines are runnable: parking is faster
			}
			last = now
		}
	}
	if w.jobCtx != nil {
		w.idleJobCtx, w.jobCtx = weak.Make(w.jobCtx), nil
	}
	w.flushTallyToShard()
	w.stopSearching()
	if p.closed.Load() && w.exitIfClosedAndDrained() {
		return wakeOrder{exit: true}
	}
	p.pushParked(w)
	if p.anyQueued() || p.closed.Load() {
		// A job was queued or the pool was closed after the search, so a worker must look again.
		if x := p.popParked(); x == w {
			w.startSearching()
			return wakeOrder{}
		} else if x != nil {
			p.wakeToSearch(x)
		}
	}
	p.wakeWaitingSubmit()
	o := <-w.wake
	w.yieldedAt = p.now()
	return o
}

func (w *worker) startSearching() {
	w.searching = true
	w.p.searching.Add(1)
}

func (w *worker) stopSearching() {
	if w.searching {
		w.searching = false
		w.p.searching.Add(-1)
	}
}

func (w *worker) flushTallyToShard() {
	if w.tally != (workerTally{}) {
		s := &w.p.shards[w.home]
		s.mu.Lock()
		s.addWorkerTallyAndReset(&w.tally)
		s.mu.Unlock()
	}
}

// exitIfOverLimit reports whether the worker must exit because there are more workers than the limit. If so, it ensures
// that another worker takes waiting jobs.
func (w *worker) exitIfOverLimit() (exiting bool) {
	p := w.p
	w.flushTallyToShard()
	w.stopSearching()
	if !p.decrementWorkersIfAbove(p.maxWorkers()) {
		return false
	}
	if p.searching.Load() == 0 && p.anyQueued() {
		p.wakeOrStartWorker()
	}
	return true
}

// exitIfClosedAndDrained reports whether the worker must exit because the pool is closed and the queue is empty. If so,
// it wakes a parked worker to do the same.
func (w *worker) exitIfClosedAndDrained() (exiting bool) {
	p := w.p
	if p.anyQueued() || !p.decrementWorkersIfAbove(0) {
		return false
	}
	if x := p.popParked(); x != nil {
		p.wakeToSearch(x)
	}
	return true
}

// contextOrDropIfExpired returns the context for a task's job. If t.Ctx has ended, it drops the job and returns nil.
func (w *worker) contextOrDropIfExpired(t Task) context.Context {
	if t.Ctx.Err() != nil {
		w.tally.expired++
		w.p.notifyDropped(t.Job, &expiredError{context.Cause(t.Ctx)})
		return nil
	}
	if w.jobCtx == nil {
		w.jobCtx = w.idleJobCtx.Value()
	}
	if w.jobCtx == nil || !w.jobCtx.reusableFor(t.Ctx) {
		w.jobCtx = &jobContext{Context: t.Ctx, pool: w.p.ctx, comparable: reflect.TypeOf(t.Ctx).Kind() == reflect.Pointer}
	}
	return w.jobCtx
}

// jobContext is a job's own context that also ends with the pool's context. If the job has not requested the Done
// channel, the worker reuses the jobContext for the next job with the same context. If the job has requested the
// channel, the jobContext also ends with the job.
type jobContext struct {
	context.Context
	pool       context.Context
	comparable bool // the job's own context is comparable

	mu           sync.Mutex
	merged       context.Context // ends with either; nil until requested
	cancel       context.CancelCauseFunc
	stopWatching func() bool
	spent        bool // must not be reused; owned by the worker
}

func (j *jobContext) reusableFor(taskCtx context.Context) bool {
	return !j.spent && j.comparable && j.Context == taskCtx
}

func (j *jobContext) Done() <-chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.merged == nil {
		j.merged, j.cancel = context.WithCancelCause(j.Context)
		cancel := j.cancel
		j.stopWatching = context.AfterFunc(j.pool, func() { cancel(ErrClosed) })
	}
	return j.merged.Done()
}

func (j *jobContext) Err() error {
	j.mu.Lock()
	both := j.merged
	j.mu.Unlock()
	if both != nil && both.Err() != nil {
		return both.Err()
	}
	if err := j.Context.Err(); err != nil {
		return err
	}
	return j.pool.Err()
}

// Value implements context.Context. Through Value, context.Cause finds the cause if the pool's context has ended.
func (j *jobContext) Value(key any) any {
	if j.Context.Err() == nil && j.pool.Err() != nil {
		if v := j.pool.Value(key); v != nil {
			return v
		}
	}
	return j.Context.Value(key)
}

func (j *jobContext) cancelMergedContext() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.merged != nil {
		j.stopWatching()
		j.cancel(context.Canceled)
		j.spent = true
	}
}
