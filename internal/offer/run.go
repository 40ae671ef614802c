// Package offer offers jobs to a pool in an open loop and counts what becomes of them:
// one side of a comparison of pools under overload, as a process.
//
// Jobs are due at fixed times, whether or not the pool keeps up. A job's latency runs
// from its submission, the moment right before the pool is asked, until it has ended; its
// deadline counts from there, too. How late jobs were submitted is reported beside it:
// the generator shares the processors with the pool, and what it is late by is not the
// pool's latency. But a pool that holds up its submitter must not look better for that
// (coordinated omission, G. Tene): every job that was due is submitted, late if it has to
// be, or counted as missed.
//
// One goroutine submits, with some in reserve for when it is held up; one writes how the
// run is going, and the pool's own run the jobs. What is counted is under locks: of each book for submissions, and of shards where
// jobs end. A job belongs to the generator until it is accepted, then to the pool, and to
// nobody when it has ended. Run starts all and waits for them, but not for a pool that
// hangs.
package offer

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/procfs"
)

const (
	// batch is how many jobs are submitted between two looks at all else.
	batch = 32
	// slice is how long the generator works before it sleeps for nap, also when it is
	// behind. Go preempts who works for longer than 10 ms and puts it behind all that is
	// runnable; with thousands of goroutines it would not run again for seconds. One that
	// has slept, on a thread of its own, runs next.
	slice = int64(4 * time.Millisecond)
	nap   = 20 * time.Microsecond
	// reserves is how many goroutines are in reserve. The first looks each relief whether
	// what is due is late by more than that, each other one half as often for twice as
	// much.
	reserves = 3
	relief   = 5 * time.Millisecond
	// retry is when a closed loop offers again after a rejection.
	retry = 100 * time.Microsecond
	// sampling is how often goroutines and workers are counted, reporting how often a
	// Line is written: so often that a process that is killed has said what it counted.
	sampling  = 50 * time.Millisecond
	reporting = 250 * time.Millisecond
	// polling is how often it is looked whether the last jobs have ended.
	polling = time.Millisecond
	// maxHang and maxClose are how long a submission that is under way at the end, and
	// the pool's Close, are waited for.
	maxHang, maxClose = 3 * time.Second, 2 * time.Second
)

// run is one run of a plan.
type run struct {
	plan  Plan
	side  Side
	tasks *tasks
	start time.Time
	opens int64       // when the window begins; all times are in ns after the start
	limit int64       // what ends later is not counted
	first uint64      // the first job of the window of an open loop
	over  atomic.Bool // jobs do nothing any more and are not counted

	warming, window *book
	jobs            sync.Pool
	slots           chan struct{} // of a closed loop: a place for each job in flight
	next            atomic.Uint64 // job to be submitted
	generators      sync.WaitGroup
	generated       chan struct{} // closed when all has been submitted

	looked                      atomic.Int64 // when look looked last
	peakGoroutines, peakWorkers atomic.Int64
	opened                      sync.Once
	warmWorkers                 atomic.Int64
	cpuAtOpening                atomic.Pointer[procfs.Stat]
	reported                    sync.WaitGroup
}

func newRun(p Plan, side Side) *run {
	r := &run{
		plan: p, side: side, tasks: p.tasks(p.Iterations), start: time.Now(),
		opens: int64(p.Warmup), limit: int64(p.Warmup + p.Duration + p.Drain), first: p.due(p.Warmup),
		warming: newBook(), window: newBook(), generated: make(chan struct{}),
	}
	if p.Rate == 0 {
		r.slots = make(chan struct{}, p.inflight())
	}
	return r
}

// now is the time since the start in ns.
func (r *run) now() int64 { return int64(time.Since(r.start)) }

// within reports whether a time is in the window.
func (r *run) within(now int64) bool {
	return now >= r.opens && now < r.opens+int64(r.plan.Duration)
}

// Run offers the jobs of a plan to one of the sides. It writes a Line each quarter of a
// second, and at last one with the Result. When ctx ends it does so early. It does not
// wait for a pool that hangs: goroutines of it may be left then. The error is a PlanError
// for a plan that makes no sense.
func Run(ctx context.Context, p Plan, sides Sides, out io.Writer) error {
	if err := p.Check(sides); err != nil {
		return err
	}
	if p.Memory > 0 {
		defer debug.SetMemoryLimit(debug.SetMemoryLimit(p.Memory / 10 * 9))
	}
	if p.Iterations == 0 {
		p.Iterations = Iterations()
	}
	side, err := sides[p.Pool](p)
	if err != nil {
		return fmt.Errorf("offer: making the pool %s: %w", p.Pool, err)
	}
	return newRun(p, side).run(ctx, out)
}

func (r *run) run(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if r.opens == 0 {
		r.open()
	}
	var failed error // of writing
	stop := make(chan struct{})
	r.reported.Go(func() { failed = r.report(stop, out) })
	r.generate(ctx)
	overran := r.wait(ctx)
	r.over.Store(true)
	end := min(r.now(), r.limit)
	cancel()
	answered := within(maxHang, r.generators.Wait)
	close(stop)
	r.reported.Wait()
	r.look(math.MaxInt64)
	result := r.result(r.window)
	result.Elapsed, result.Overran = max(0, time.Duration(end-r.opens)), overran
	result.Missed = r.missed(r.window, end, result.Offered)
	if !answered {
		result.Overran = fmt.Sprintf("a submission had not returned %v after the end", maxHang)
	}
	if failed == nil {
		failed = Line{Result: result}.Write(out)
	}
	if answered { // a pool may not be closed while a submission is under way
		within(maxClose, r.side.Close)
	}
	return failed
}

// within calls f and reports whether it returned in time.
func within(d time.Duration, f func()) bool {
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		f()
	}()
	select {
	case <-returned:
		return true
	case <-time.After(d):
		return false
	}
}

// wait waits until all jobs have been submitted and have ended, or for as long as the
// plan says. It returns why that was early, if it was.
func (r *run) wait(ctx context.Context) (overran string) {
	end := time.NewTimer(time.Duration(r.limit))
	defer end.Stop()
	poll := time.NewTicker(polling)
	defer poll.Stop()
	generated := r.generated
	for {
		select {
		case <-generated:
			generated = nil
		case <-poll.C:
		case <-end.C:
			return ""
		case <-ctx.Done():
			return fmt.Sprintf("ended from outside: %v", context.Cause(ctx))
		}
		if generated == nil && r.window.ended() >= r.window.accepted() {
			return ""
		}
	}
}

// generate starts goroutines that submit all jobs of the plan, or those up to when ctx
// ends. A job is submitted by who has counted it in next: so the load is what the plan
// says as long as any of them runs, and comes from one as long as that one does.
func (r *run) generate(ctx context.Context) {
	finish := sync.OnceFunc(func() { close(r.generated) })
	start := func(loop func(sleep func(time.Duration))) {
		r.generators.Go(func() {
			runtime.LockOSThread() // see slice
			defer runtime.UnlockOSThread()
			timer := time.NewTimer(time.Hour)
			defer timer.Stop()
			loop(func(d time.Duration) {
				timer.Reset(d)
				select {
				case <-timer.C:
				case <-ctx.Done():
				}
			})
			finish()
		})
	}
	if r.plan.Rate == 0 {
		start(func(sleep func(time.Duration)) { r.closedLoop(ctx, sleep) })
		return
	}
	start(func(sleep func(time.Duration)) { r.openLoop(ctx, sleep, 0) })
	for i := range reserves {
		start(func(sleep func(time.Duration)) { r.openLoop(ctx, sleep, relief<<i) })
	}
}

// openLoop submits each job when it is due: job i is due i/Rate after the start. One in
// reserve leaves alone what is due since less than its patience. What nobody has got to
// when Drain is over is missed.
func (r *run) openLoop(ctx context.Context, sleep func(time.Duration), patience time.Duration) {
	gap := float64(time.Second) / r.plan.Rate
	dueAt := func(i uint64) int64 { return int64(math.Round(float64(i) * gap)) }
	total, woke := r.plan.jobs(), r.now()
	for i := r.next.Load(); i < total && ctx.Err() == nil; i = r.next.Load() {
		now := r.now()
		r.look(now)
		due := dueAt(i)
		switch {
		case now > r.limit:
			return
		case now-woke > slice:
			sleep(nap)
			woke = r.now()
		case patience == 0 && due > now:
			sleep(time.Duration(due - now))
			woke = r.now()
		case patience > 0 && due+int64(patience) >= now:
			sleep(patience)
			woke = r.now()
		default:
			for n := 0; n < batch && i < total && due <= now && !r.over.Load() && r.next.CompareAndSwap(i, i+1); n++ {
				b := r.window
				if i < r.first {
					b = r.warming
				}
				now = r.now()
				r.submit(b, i, now, now-due)
				i++
				due = dueAt(i)
			}
		}
	}
}

// closedLoop submits a job each time that one has ended.
func (r *run) closedLoop(ctx context.Context, sleep func(time.Duration)) {
	ctx, cancel := context.WithTimeout(ctx, r.plan.Warmup+r.plan.Duration)
	defer cancel()
	for i := uint64(0); ; i++ {
		select {
		case r.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		if ctx.Err() != nil {
			return
		}
		now, b := r.now(), r.window
		if r.look(now); now < r.opens {
			b = r.warming
		}
		if !r.submit(b, i, now, 0) {
			sleep(retry)
		}
	}
}

// submit submits a job now, which is late by so much. It reports whether the job was
// accepted.
func (r *run) submit(b *book, number uint64, now, late int64) bool {
	j, ok := r.jobs.Get().(*Job)
	if !ok {
		j = &Job{run: r}
		j.do = j.Do
	}
	if j.ctx == nil || j.ctx.waited.Load() {
		j.ctx = &jobContext{run: r}
	}
	j.ctx.at.Store(now + int64(r.plan.Deadline))
	j.number, j.submitted, j.tally = number, now, b.tally(number)
	j.open.Store(true)
	b.offer(late)
	answer := r.side.Try(j)
	if answer == Accepted {
		return true
	}
	b.reject(answer)
	r.free(j)
	return false
}

// free gives a job back that is nobody's any more.
func (r *run) free(j *Job) {
	r.jobs.Put(j)
	if r.slots != nil {
		<-r.slots
	}
}

// look counts goroutines and workers now and then, and notes what there is when the
// window begins. The generator does so, too, since the reporter may not run for long
// when there are very many goroutines. It makes no system call but at the beginning of
// the window.
func (r *run) look(now int64) {
	if now >= r.opens {
		r.open()
	}
	if before := r.looked.Load(); now-before < int64(sampling) || !r.looked.CompareAndSwap(before, now) {
		return
	}
	raise(&r.peakGoroutines, int64(runtime.NumGoroutine()))
	raise(&r.peakWorkers, int64(r.side.Workers()))
}

// open notes what there is when the window begins.
func (r *run) open() {
	r.opened.Do(func() {
		stat, _ := procfs.ReadStat(os.Getpid()) // not on every system
		r.cpuAtOpening.Store(&stat)
		if r.opens > 0 {
			r.warmWorkers.Store(int64(r.side.Workers()))
		}
	})
}

// raise makes a value at least as great as n.
func raise(v *atomic.Int64, n int64) {
	for {
		if old := v.Load(); n <= old || v.CompareAndSwap(old, n) {
			return
		}
	}
}

// report writes a line at each multiple of reporting, and when the window begins.
func (r *run) report(stop <-chan struct{}, out io.Writer) error {
	next := func(at int64) int64 {
		next := at - at%int64(reporting) + int64(reporting)
		if at < r.opens {
			next = min(next, r.opens)
		}
		return next
	}
	due := next(0)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-stop:
			return nil
		case <-timer.C:
		}
		now := r.now()
		r.look(now)
		if now >= due {
			due = next(now)
			line := Line{Progress: r.result(r.window)}
			if now < r.opens {
				line = Line{Warming: r.result(r.warming)}
			}
			if err := line.Write(out); err != nil {
				<-stop
				return err
			}
		}
		timer.Reset(time.Duration(min(due-now, int64(sampling))))
	}
}

// result is the Result of a book so far. What the system does not tell stays 0.
func (r *run) result(b *book) *Result {
	p, now := &r.plan, r.now()
	res := &Result{
		Pool: p.Pool, Work: p.Work, Rate: p.Rate, Warmup: p.Warmup, Duration: p.Duration,
		Elapsed: max(0, time.Duration(now-r.opens)), Iterations: p.Iterations,
	}
	b.collect(res)
	if b == r.warming {
		res.Elapsed = time.Duration(now)
	} else {
		res.Steady += r.warming.steady()
	}
	res.Missed = r.missed(b, now, res.Offered)
	res.PeakGoroutines, res.PeakWorkers = int(r.peakGoroutines.Load()), int(r.peakWorkers.Load())
	res.WarmWorkers = int(r.warmWorkers.Load())
	if m, err := procfs.ReadResident(os.Getpid()); err == nil {
		res.PeakRSS = m.Peak
	}
	if before := r.cpuAtOpening.Load(); before != nil {
		if stat, err := procfs.ReadStat(os.Getpid()); err == nil {
			res.CPUUser, res.CPUSystem = stat.User-before.User, stat.System-before.System
		}
	}
	return res
}

// missed is how many jobs of a book were due at a time and had not been submitted.
func (r *run) missed(b *book, now int64, offered uint64) uint64 {
	if r.plan.Rate == 0 {
		return 0
	}
	due := min(uint64(float64(now)*r.plan.Rate/1e9)+1, r.plan.jobs())
	if warming := min(due, r.first); b == r.warming {
		due = warming
	} else {
		due -= warming
	}
	return due - min(due, offered)
}
