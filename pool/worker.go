package pool

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"
	"weak"
)

// This file is a worker's life.
//
// A worker takes a task, runs it, and so on. When there is none it searches: it
// looks some more times, letting others run in between, and then parks. While one
// searches, who submits wakes nobody. It gives that up as soon as it has found a
// task; if it was the last one and there are more tasks, it wakes another first. So
// there is always somebody on the way to a task that waits, and jobs that are
// shorter than it takes to wake somebody run on few workers. (Go's own scheduler
// does so with its threads.)
//
// Before it sleeps a parked worker looks at the queue once more; who submits looks
// for parked workers after it has put its task there. So one of the two sees the
// other.
//
// What became of its jobs a worker keeps for itself, and adds to a shard's tally
// when it holds that lock next: to take a task, or to park.
//
// A worker reads the clock when it takes tasks, which ends the time of those
// before. While all jobs are quick (trust.go) it takes them in batches: that saves
// most of the locks, and of the clock. Should one take long all the same, the tender
// gives the rest of the batch to others.

const (
	// searches is how often a worker looks again before it parks.
	searches = 3
	// quantum is how long a worker runs jobs until it lets others run: so that no
	// other worker has to wait for a processor with a task in its hands until Go
	// preempts this one, after 10 ms. It is bounded from below because where
	// thousands are ready it takes long until one's turn comes again. Where jobs
	// block it does not hold after one that took as long: who comes back from it has
	// mostly just waited for its turn, and is not to wait for another before the next
	// job. (One that has computed goes on until Go preempts it.)
	quantum = time.Millisecond
	// Quick jobs that come a handful at a time are not worth a visit to the queue:
	// there, too, others are let run, so that more come together. When that has
	// taken long, because very many are ready, it is left for a while.
	handful, long, while = 4, 200 * time.Microsecond, 64
	// turn is how long letting others run takes where few are ready.
	turn = 20 * time.Microsecond
)

// worker is a goroutine that runs jobs. Its fields belong to that goroutine, or to
// who has popped it from the idle stack until it is woken.
type worker struct {
	p      *Pool
	number uint32
	below  atomic.Uint32 // in the idle stack
	wake   chan order    // has room for one
	first  stamped       // the task that it has taken
	batch  batch         // more of them

	visited atomic.Int64 // when it has looked for tasks last; 0 while it is parked
	stuck   bool         // the tender's: it has not come back for long

	home      int  // the shard where it looks first
	searching bool // it is counted in Pool.searching

	began int64 // when it was its turn
	since int64 // when it took the task or the batch that it has run last
	count int   // how many those were, by now; 0 is none
	wait  int64 // how long the first of them had waited

	good     int // quick batches; see trust
	patience int // how often few quick jobs will do, before others are let run again

	tally tally1
	dead  []Task // that were shed when it took a task
	own   *joined
	last  weak.Pointer[joined] // own while the worker is parked, which is not to keep it
}

// order is what a worker is woken with.
type order struct {
	task Task
	at   int64 // when it came; 0 is no task
	end  bool  // it is to end
}

// tally1 is what became of a worker's jobs since it has last told.
type tally1 struct {
	finished, panicked, expired uint64
	timed                       uint64 // how many jobs the times stand for; 0 is none
	wait, service               time.Duration
}

// flush adds to a shard's tally. The caller has its lock.
func (s *shard) flush(w *worker) {
	t := &w.tally
	if t.finished|t.expired == 0 {
		return
	}
	s.tally.finished += t.finished
	s.tally.panicked += t.panicked
	s.tally.expired += t.expired
	if t.timed > 0 {
		s.tally.wait.add(t.wait, t.timed)
		s.tally.service.add(t.service, t.timed)
	}
	*t = tally1{}
}

// live is a worker's goroutine. Each call of work ends with the worker, or with a
// job that has panicked. One that has ended its goroutine does not return here:
// then another goroutine takes the worker's place.
func (w *worker) live(o order) {
	over := false
	defer func() {
		if !over {
			w.p.running.Go(func() { w.live(order{}) })
		}
	}()
	for w.work(&o) {
	}
	over = true
	w.visited.Store(0)
	w.p.mu.Lock()
	w.p.spare = append(w.p.spare, w)
	w.p.mu.Unlock()
}

// work runs jobs until the worker ends, or one of them panics: then again is true.
func (w *worker) work(o *order) (again bool) {
	running := false
	defer func() {
		if running {
			w.contain(recover())
			again = true
		}
	}()
	for {
		job, ctx := w.batch.next()
		if job == nil {
			if !w.find(o) {
				return false
			}
			job, ctx = w.first.Job, w.first.Ctx
			w.first.Job, w.first.Ctx = nil, nil
		}
		if ctx == nil {
			ctx = w.p.ctx
		} else if ctx = w.context(job, ctx); ctx == nil {
			continue
		}
		running = true
		job.Run(ctx)
		running = false
		w.finish()
	}
}

// find gets a worker its next task. There is none if it is to end.
func (w *worker) find(o *order) bool {
	p := w.p
	for {
		if o.at != 0 {
			w.first.Task, w.since = o.task, p.now()
			w.visited.Store(w.since)
			w.wait = max(0, w.since-o.at)
			*o = order{}
			return true
		}
		if p.workers() > p.limit.Load() && w.surplus() {
			return false
		}
		if p.take(w, w.pause()) {
			return true
		}
		if *o = w.idle(); o.end {
			return false
		}
	}
}

// pause is between jobs. It ends the time of the last one, lets others run if it is
// time for that, and gives the time.
func (w *worker) pause() (now int64) {
	now = w.p.now()
	few := w.count > 0 && w.count <= handful && w.p.trust.quick()
	w.settle(now)
	if few && w.patience > 0 {
		w.patience--
		few = false
	}
	if now-w.since >= int64(quantum) && w.p.blocking.Load() {
		w.began = now
	}
	if few || now-w.began >= int64(quantum) {
		last := now
		w.visited.Store(0)
		runtime.Gosched()
		now = w.p.now()
		w.began = now
		if few && now-last > int64(long) {
			w.patience = while
		}
	}
	return now
}

// finish is after a job.
func (w *worker) finish() {
	w.tally.finished++
	w.count++
	if w.own != nil {
		w.own.end()
	}
}

// settle ends the time of the jobs that were run.
func (w *worker) settle(now int64) {
	if w.count == 0 {
		return
	}
	each := time.Duration(now-w.since) / time.Duration(w.count)
	w.tally.timed = uint64(w.count)
	w.tally.wait, w.tally.service = time.Duration(w.wait), each
	w.p.trust.judge(each <= quickJob, w.count, &w.good)
	w.count = 0
}

// contain is after a job that has panicked, with its value, or has ended its
// goroutine.
func (w *worker) contain(v any) {
	w.tally.panicked++
	w.finish()
	w.p.report(v)
}

// idle searches for tasks, and parks when there are none. It gives what the worker
// was woken with: nothing if it is to look again.
func (w *worker) idle() order {
	p := w.p
	if !w.searching && p.searching.Load() < p.searchers {
		w.searching = true
		p.searching.Add(1)
	}
	if w.searching {
		now := p.now()
		p.clock.Store(now)
		for range searches {
			if p.waiting() {
				return order{}
			}
			runtime.Gosched()
			last := now
			if now = p.now(); now-last > int64(turn) {
				break // many are ready: who is woken has its turn sooner
			}
		}
	}
	if w.own != nil {
		w.last, w.own = weak.Make(w.own), nil
	}
	w.tell()
	w.rest()
	if p.closed.Load() && w.quit(0) {
		return order{end: true}
	}
	w.visited.Store(0)
	p.pushIdle(w)
	if p.waiting() || p.closed.Load() {
		// Somebody has to see to it, and to wake another if that is not all. If it
		// is this worker, nobody wakes it.
		if x := p.popIdle(); x == w {
			w.searching = true
			p.searching.Add(1)
			return order{}
		} else if x != nil {
			p.send(x)
		}
	}
	p.wake()
	o := <-w.wake
	w.began = p.now()
	return o
}

// rest is when a worker does not search any more.
func (w *worker) rest() {
	if w.searching {
		w.searching = false
		w.p.searching.Add(-1)
	}
}

// tell adds to a shard's tally what is left to tell.
func (w *worker) tell() {
	w.settle(w.p.now())
	if w.tally != (tally1{}) {
		s := &w.p.shards[w.home]
		s.mu.Lock()
		s.flush(w)
		s.mu.Unlock()
	}
}

// surplus says whether a worker ends because there are more than there may be, which
// are so many that they see to what waits.
func (w *worker) surplus() bool {
	p := w.p
	w.tell()
	w.rest()
	if !w.quit(p.limit.Load()) {
		return false
	}
	if p.searching.Load() == 0 && p.waiting() {
		p.rouse()
	}
	return true
}

// quit says whether a worker ends: not if there are no more than floor then. In a
// pool that closes it ends with nothing to do, and has another one look, too.
func (w *worker) quit(floor int64) bool {
	p := w.p
	if floor == 0 && p.waiting() {
		return false
	}
	if !p.lower(floor) {
		return false
	}
	if floor == 0 {
		if x := p.popIdle(); x != nil {
			p.send(x)
		}
	}
	return true
}

// context is the context for a job with one of its own; nil if that has ended, so
// that the job must not run.
func (w *worker) context(job Job, own context.Context) context.Context {
	if own.Err() != nil {
		w.tally.expired++
		w.p.tell(job, &expired{context.Cause(own)})
		return nil
	}
	if w.own == nil {
		w.own = w.last.Value()
	}
	if w.own == nil || !w.own.serves(own) {
		w.own = join(own, w.p.ctx)
	}
	return w.own
}
