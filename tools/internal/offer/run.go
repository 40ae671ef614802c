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
// One goroutine submits, with some in reserve for when it is held up, and the pool's own
// run the jobs. How the run is going is written by a goroutine that is there for that, or by
// one that has done a job, if it comes first: among very many goroutines one alone would not
// run for seconds. What is counted is in shards, each under its lock. A job belongs to the generator until it is accepted, then to the pool, and to
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

	"github.com/myriad-go/myriad/tools/internal/pacer"
	"github.com/myriad-go/myriad/tools/internal/sample"
)

const (
	// lateAfter is how much later than due a submission counts as late.
	lateAfter = 10 * time.Millisecond
	// slice is how long the generator works before it sleeps for nap, also when it is
	// behind. Go preempts who works for longer than 10 ms and puts it behind all that is
	// runnable; with thousands of goroutines it would not run again for seconds. One that
	// has slept, on a thread of its own, runs next.
	slice = 4 * time.Millisecond
	nap   = 20 * time.Microsecond
	// reserves is how many goroutines are in reserve. The first submits what is late by
	// more than relief, each other one what is late by twice as much as that before.
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

// run is one run of a plan. All times are since its start.
type run struct {
	plan          Plan
	side          Side
	start         time.Time
	opens, closes time.Duration // the window
	limit         time.Duration // what ends later is not counted
	over          atomic.Bool   // jobs do nothing any more and are not counted

	pacer      *pacer.Shared // of an open loop
	slots      chan struct{} // of a closed loop: a place for each job in flight
	submitted  atomic.Uint64
	tallies    []tally
	generators sync.WaitGroup
	generated  atomic.Bool // all has been submitted

	sampled                     atomic.Int64 // when observe sampled last
	peakGoroutines, peakWorkers atomic.Int64
	opening                     func() sample.Process // what was used until the window began
	said                        said
}

func newRun(p Plan, side Side, out io.Writer) *run {
	r := &run{
		plan: p, side: side, said: said{out: out}, start: time.Now(), opens: p.Warmup, closes: p.Warmup + p.Duration,
		limit: p.Warmup + p.Duration + p.Drain, tallies: newTallies(), opening: sync.OnceValue(used),
	}
	if p.Rate > 0 {
		r.pacer = pacer.NewShared()
		r.pacer.Start(pacer.Curve{Begin: 1, PerSecond: p.Rate}, 0, r.opens, r.closes)
	} else {
		n := p.Inflight
		if n == 0 {
			n = p.Workers
		}
		r.slots = make(chan struct{}, n)
	}
	return r
}

// used is what this process has used, as far as the system tells.
func used() sample.Process {
	s, _ := sample.Take(sample.CPU|sample.Memory, os.Getpid())
	return s.Total()
}

func (r *run) now() time.Duration { return time.Since(r.start) }

// tally is the shard of a job.
func (r *run) tally(number uint64) *tally { return &r.tallies[number%uint64(len(r.tallies))] }

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
	return newRun(p, side, out).run(ctx)
}

func (r *run) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var reporter sync.WaitGroup
	stop := make(chan struct{})
	reporter.Go(func() { r.keepSaying(stop) })
	r.generate(ctx)
	overran := r.wait(ctx)
	r.over.Store(true)
	end := min(r.now(), r.limit)
	cancel()
	answered := within(maxHang, r.generators.Wait)
	close(stop)
	reporter.Wait()
	r.observe(math.MaxInt64)
	result := r.result(end)
	if result.Overran = overran; !answered {
		result.Overran = fmt.Sprintf("a submission had not returned %v after the end", maxHang)
	}
	failed := r.said.last(Line{Result: result})
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
	end := time.NewTimer(r.limit)
	defer end.Stop()
	poll := time.NewTicker(polling)
	defer poll.Stop()
	for {
		select {
		case <-poll.C:
		case <-end.C:
			return ""
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return fmt.Sprintf("ended from outside: %v", context.Cause(ctx))
		}
		if r.generated.Load() && r.unfinished() == 0 {
			return ""
		}
	}
}

// unfinished is how many jobs of the window have not ended.
func (r *run) unfinished() (n uint64) {
	for i := range r.tallies {
		t := &r.tallies[i]
		t.mu.Lock()
		n += t.unfinished()
		t.mu.Unlock()
	}
	return n
}

// generate starts goroutines that submit all jobs of the plan, or those up to when ctx
// ends. So the load is what the plan says as long as any of them runs, and comes from one
// as long as that one does.
func (r *run) generate(ctx context.Context) {
	loops := []func(g *generator){r.closedLoop}
	if r.pacer != nil {
		loops = []func(g *generator){func(g *generator) { r.openLoop(g, 0) }}
		for i := range reserves {
			loops = append(loops, func(g *generator) { r.openLoop(g, relief<<i) })
		}
	}
	for _, loop := range loops {
		r.generators.Go(func() {
			runtime.LockOSThread() // see slice
			defer runtime.UnlockOSThread()
			g := &generator{ctx: ctx, timer: time.NewTimer(time.Hour)}
			defer g.timer.Stop()
			loop(g)
			r.generated.Store(true)
		})
	}
}

// generator is what one of the goroutines has that submit jobs.
type generator struct {
	ctx   context.Context
	timer *time.Timer
	spare *Job // was rejected
}

func (g *generator) sleep(d time.Duration) {
	g.timer.Reset(d)
	select {
	case <-g.timer.C:
	case <-g.ctx.Done():
	}
}

// openLoop submits each job when it is due, those in reserve when it is late by more than
// their patience. What nobody has got to when Drain is over is missed.
func (r *run) openLoop(g *generator, patience time.Duration) {
	for woke := r.now(); g.ctx.Err() == nil; {
		now := r.now()
		r.observe(now)
		due, ok := time.Duration(0), false
		if now-woke <= slice {
			due, ok = r.pacer.Take(now - patience)
		}
		switch next := r.pacer.NextDue(); {
		case ok:
			r.submit(g, due >= r.opens, now, now-due)
			continue
		case now > r.limit || next == pacer.Never:
			return
		case now-woke > slice:
			g.sleep(nap)
		case patience == 0:
			g.sleep(next - now)
		default:
			g.sleep(patience)
		}
		woke = r.now()
	}
}

// closedLoop submits a job each time that one has ended.
func (r *run) closedLoop(g *generator) {
	ctx, cancel := context.WithTimeout(g.ctx, r.closes)
	defer cancel()
	for {
		select {
		case r.slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return
		}
		now := r.now()
		r.observe(now)
		if !r.submit(g, now >= r.opens, now, 0) {
			r.release()
			g.sleep(retry)
		}
	}
}

// submit submits a job now, which is late by so much. It reports whether the job was
// accepted.
func (r *run) submit(g *generator, counted bool, now, late time.Duration) bool {
	j := g.spare
	if j == nil || j.timer != nil {
		j = &Job{run: r}
	}
	g.spare = nil
	j.number, j.counted, j.submitted = r.submitted.Add(1)-1, counted, now
	t := r.tally(j.number)
	if counted {
		t.mu.Lock()
		t.counts[nOffered]++
		if late > lateAfter {
			t.counts[nLate]++
		}
		record(t.lateness, late)
		t.mu.Unlock()
	}
	if r.side.Try(j) {
		return true
	}
	g.spare = j
	if counted {
		t.mu.Lock()
		t.counts[nRejected]++
		t.mu.Unlock()
	}
	return false
}

// release makes room for another job in a closed loop.
func (r *run) release() {
	if r.slots != nil {
		<-r.slots
	}
}

// observe counts goroutines and workers now and then, and notes what was used when the
// window begins. It makes no system call but at the beginning of
// the window.
func (r *run) observe(now time.Duration) {
	if now >= r.opens && now != math.MaxInt64 {
		r.opening()
	}
	before := r.sampled.Load()
	if now-time.Duration(before) < sampling || !r.sampled.CompareAndSwap(before, int64(now)) {
		return
	}
	raise(&r.peakGoroutines, int64(runtime.NumGoroutine()))
	raise(&r.peakWorkers, int64(r.side.Workers()))
}

// raise makes a value at least as great as n.
func raise(v *atomic.Int64, n int64) {
	for {
		if old := v.Load(); n <= old || v.CompareAndSwap(old, n) {
			return
		}
	}
}

// result is the Result by now. What the system does not tell stays 0.
func (r *run) result(now time.Duration) *Result {
	p := &r.plan
	res := &Result{
		Pool: p.Pool, Work: p.Work, Rate: p.Rate, Warmup: p.Warmup, Duration: p.Duration,
		Elapsed: max(0, now-r.opens), Iterations: p.Iterations,
	}
	res.add(r.tallies)
	if r.pacer != nil && now >= r.opens {
		res.Missed = uint64(max(0, r.pacer.CountOverdue(now)-r.pacer.CountOverdue(r.opens-1)))
	}
	res.PeakGoroutines, res.PeakWorkers = int(r.peakGoroutines.Load()), int(r.peakWorkers.Load())
	res.Process = used()
	before := res.Process
	if now >= r.opens {
		before = r.opening()
	}
	res.User, res.System = res.User-before.User, res.System-before.System
	return res
}
