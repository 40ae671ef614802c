package pool

import (
	"context"
	"reflect"
	"runtime"
	"sync"
	"time"
	"weak"
)

// A worker takes a job, runs it, and so on. When there is none it searches: it looks a
// few more times, yielding in between, and then parks. While a worker searches,
// submitters wake nobody. It stops searching as soon as it finds a job; the last one
// that searched wakes another if more jobs wait. So somebody is always on the way to a
// job that waits, and jobs shorter than a wake-up run on few workers. (Go's scheduler
// does the same with its threads.)
//
// Before it sleeps a parked worker looks at the queue once more, and submitters look for
// parked workers after they have queued a job: so one of the two sees the other.
//
// Outcomes are counted by the worker and added to a shard's tally when it next holds
// its lock, to take a job or to park.

const (
	// searchRounds is how often a searching worker looks again before it parks.
	searchRounds = 3
	// searchYield is how long a yield takes where few goroutines are runnable. Where it
	// takes longer, a search is given up.
	searchYield = 20 * time.Microsecond
	// quantum is how long a worker runs jobs until it yields: so that no other worker
	// waits for a processor, with a job in its hands, until Go preempts this one after
	// 10 ms. Shorter would hurt where thousands are runnable. Where jobs block, a job that
	// took this long has mostly waited, and the worker takes the next one at once.
	quantum = time.Millisecond
)

// worker is a goroutine that runs jobs. Its fields belong to that goroutine, or to
// whoever popped it from the stack of parked workers until it is woken.
type worker struct {
	p    *Pool
	wake chan order // has room for one

	home      int  // shard to look at first
	searching bool // counted in Pool.searching

	turn  int64 // when it last yielded
	began int64 // when the job began
	ended int64 // when the last one ended

	job   entry // the last one that was taken
	tally workerTally
	shed  []Task // by the last take
	own   *jobContext
	last  weak.Pointer[jobContext] // own while the worker is parked, which is not to keep it
}

// order is what a worker is woken with: a job, to exit, or neither, to search.
type order struct {
	entry
	exit bool
}

// workerTally counts outcomes that have not been added to a shard's tally yet.
type workerTally struct {
	finished, panicked, expired uint64
	timed                       bool // one job has run, and these are its times
	wait, service               time.Duration
}

// flush adds a worker's tally to the shard's, whose lock the caller holds.
func (s *shard) flush(t *workerTally) {
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

// run is a worker's goroutine. Each call of runJobs ends with the worker or with a job
// that panicked. After a job that ended its goroutine (runtime.Goexit) another goroutine
// takes over.
func (w *worker) run(o order) {
	returned := false
	defer func() {
		if !returned {
			w.p.running.Go(func() { w.run(order{}) })
		}
	}()
	for w.runJobs(&o) {
	}
	returned = true
}

// runJobs runs jobs until the worker exits or a job panics; then panicked is true.
func (w *worker) runJobs(o *order) (panicked bool) {
	running := false
	defer func() {
		if running {
			v := recover()
			w.tally.panicked++
			w.jobEnded()
			w.p.reportPanic(v)
			panicked = true
		}
	}()
	for {
		if !w.next(o) {
			return false
		}
		ctx := w.p.ctx
		if w.job.Ctx != nil {
			if ctx = w.jobContext(w.job.Task); ctx == nil {
				w.job.Task = Task{}
				continue
			}
		}
		running = true
		w.job.Job.Run(ctx)
		running = false
		w.jobEnded()
	}
}

// next gets the worker's next job. It reports false if the worker is to exit.
func (w *worker) next(o *order) bool {
	p := w.p
	for {
		if o.Job != nil {
			w.job, *o = o.entry, order{}
			w.jobBegins(p.now())
			return true
		}
		if p.workers() > p.most() && w.exitIfOverLimit() {
			return false
		}
		if w.take(w.betweenJobs()) {
			return true
		}
		if *o = w.park(); o.exit {
			return false
		}
	}
}

// take takes a job from the queue. It wakes further workers if they are needed, and a
// Submit that waits for room.
func (w *worker) take(now int64) bool {
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
			s.flush(&w.tally)
			ok := s.take(now, &w.job, &w.shed)
			more := false
			if ok && w.searching { // under the lock: who searches counts as room
				w.searching = false
				more = p.searching.Add(-1) == 0
			}
			s.mu.Unlock()
			if ok {
				w.home = (at + 1) & mask
				if w.wakeOthers(more) {
					now = p.now() // that took its time, which is not the job's
				}
				w.jobBegins(now)
				return true
			}
			if len(w.shed) > 0 { // and there is more to shed
				w.wakeOthers(false)
				now, again = p.now(), true
			}
		}
		if !again {
			return false
		}
	}
}

// wakeOthers tells jobs that they were shed, wakes a Submit that waits for room, and, with
// more, another worker if jobs wait. It reports whether it did any of that.
func (w *worker) wakeOthers(more bool) (did bool) {
	p := w.p
	if did = len(w.shed) > 0; did {
		w.shed = p.notifyShed(w.shed)
	}
	did = p.wakeWaiter() || did
	if more && p.searching.Load() == 0 && p.anyQueued() {
		p.wakeWorker()
		did = true
	}
	return did
}

// betweenJobs yields when the quantum is over, jobs wait and jobs do not block. It returns the time.
func (w *worker) betweenJobs() (now int64) {
	now = w.ended
	if now == 0 {
		now = w.p.now()
	}
	if now-w.turn >= int64(quantum) && !w.p.blocking.Load() && w.p.anyQueued() {
		runtime.Gosched()
		now = w.p.now()
		w.turn = now
	}
	return now
}

// jobBegins begins to time the job.
func (w *worker) jobBegins(now int64) {
	w.began = now
	w.tally.timed, w.tally.wait = true, time.Duration(max(0, now-w.job.at))
}

func (w *worker) jobEnded() {
	w.ended = w.p.now()
	w.tally.service = time.Duration(w.ended - w.began)
	w.job.Task = Task{}
	w.tally.finished++
	if w.own != nil {
		w.own.end()
	}
}

// park searches for jobs, and parks the worker when there are none. It returns what the
// worker was woken with.
func (w *worker) park() order {
	p := w.p
	w.ended = 0
	if !w.searching && p.searching.Load() < p.searchers {
		w.startSearching()
	}
	if w.searching {
		rounds := 0
		for last := p.now(); ; {
			if p.anyQueued() {
				return order{}
			}
			runtime.Gosched()
			now := p.now()
			if rounds++; rounds == searchRounds || now-last > int64(searchYield) {
				break // many are runnable: who is woken has its turn sooner
			}
			last = now
		}
	}
	if w.own != nil {
		w.last, w.own = weak.Make(w.own), nil
	}
	w.flush()
	w.stopSearching()
	if p.closed.Load() && w.exitClosed() {
		return order{exit: true}
	}
	p.pushParked(w)
	if p.anyQueued() || p.closed.Load() {
		// Some worker has to see to that, and to wake another if it is not all.
		if x := p.popParked(); x == w {
			w.startSearching()
			return order{}
		} else if x != nil {
			p.wakeToSearch(x)
		}
	}
	p.wakeWaiter()
	o := <-w.wake
	w.turn = p.now()
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

// flush adds the worker's tally to that of a shard.
func (w *worker) flush() {
	if w.tally != (workerTally{}) {
		s := &w.p.shards[w.home]
		s.mu.Lock()
		s.flush(&w.tally)
		s.mu.Unlock()
	}
}

// exitIfOverLimit reports whether the worker exits because there are more than the limit.
// The others see to what waits.
func (w *worker) exitIfOverLimit() bool {
	p := w.p
	w.flush()
	w.stopSearching()
	if !p.removeWorker(p.most()) {
		return false
	}
	if p.searching.Load() == 0 && p.anyQueued() {
		p.wakeWorker()
	}
	return true
}

// exitClosed reports whether the worker of a closed pool exits, because nothing is left
// to do. It then has another one look, too.
func (w *worker) exitClosed() bool {
	p := w.p
	if p.anyQueued() || !p.removeWorker(0) {
		return false
	}
	if x := p.popParked(); x != nil {
		p.wakeToSearch(x)
	}
	return true
}

// jobContext is the context for a job with one of its own; nil if that has ended and the
// job must not run.
func (w *worker) jobContext(t Task) context.Context {
	if t.Ctx.Err() != nil {
		w.tally.expired++
		w.p.notifyDropped(t.Job, &expired{context.Cause(t.Ctx)})
		return nil
	}
	if w.own == nil {
		w.own = w.last.Value()
	}
	if w.own == nil || !w.own.reusableFor(t.Ctx) {
		w.own = &jobContext{Context: t.Ctx, pool: w.p.ctx, comparable: reflect.TypeOf(t.Ctx).Kind() == reflect.Pointer}
	}
	return w.own
}

// jobContext is a job's own context that also ends with the pool's, and with the job if
// anybody asked for its Done. Most jobs don't; then a worker uses it again for the next
// job with the same context, and nothing is allocated.
type jobContext struct {
	context.Context
	pool       context.Context
	comparable bool // the job's own context

	mu     sync.Mutex
	both   context.Context // ends with either; nil until asked for
	cancel context.CancelCauseFunc
	stop   func() bool
	used   bool // the worker's: not to be used again
}

func (j *jobContext) reusableFor(own context.Context) bool {
	return !j.used && j.comparable && j.Context == own
}

// Done implements context.Context.
func (j *jobContext) Done() <-chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.both == nil {
		j.both, j.cancel = context.WithCancelCause(j.Context)
		cancel := j.cancel
		j.stop = context.AfterFunc(j.pool, func() { cancel(ErrClosed) })
	}
	return j.both.Done()
}

// Err implements context.Context.
func (j *jobContext) Err() error {
	j.mu.Lock()
	both := j.both
	j.mu.Unlock()
	if both != nil && both.Err() != nil {
		return both.Err()
	}
	if err := j.Context.Err(); err != nil {
		return err
	}
	return j.pool.Err()
}

// Value implements context.Context. context.Cause asks for a value, and finds the pool's
// cause when the pool has ended the job.
func (j *jobContext) Value(key any) any {
	if j.Context.Err() == nil && j.pool.Err() != nil {
		if v := j.pool.Value(key); v != nil {
			return v
		}
	}
	return j.Context.Value(key)
}

// end is called by the worker when the job has returned.
func (j *jobContext) end() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.both != nil {
		j.stop()
		j.cancel(context.Canceled)
		j.used = true
	}
}
