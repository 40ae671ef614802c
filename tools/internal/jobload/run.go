// Package jobload submits jobs to a pool in an open loop and counts what becomes of them:
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
package jobload

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
	// workSlice is how long the generator works before it sleeps for nap, also when it is
	// behind. Go preempts who works for longer than 10 ms and puts it behind all that is
	// runnable; with thousands of goroutines it would not run again for seconds. One that
	// has slept, on a thread of its own, runs next.
	workSlice = 4 * time.Millisecond
	workPause = 20 * time.Microsecond
	// reserveSubmitters is how many goroutines are in reserve. The first submits what is late by
	// more than relief, each other one what is late by twice as much as that before.
	reserveSubmitters = 3
	reserveDelay      = 5 * time.Millisecond
	// retryDelay is when a closed loop offers again after a rejection.
	retryDelay = 100 * time.Microsecond
	// sampleInterval is how often goroutines and workers are counted, reporting how often a
	// Line is written: so often that a process that is killed has said what it counted.
	sampleInterval = 50 * time.Millisecond
	reportInterval = 250 * time.Millisecond
	// pollInterval is how often it is looked whether the last jobs have ended.
	pollInterval = time.Millisecond
	// submitTimeout and closeTimeout are how long a submission that is under way at the end, and
	// the pool's Close, are waited for.
	submitTimeout, closeTimeout = 3 * time.Second, 2 * time.Second
)

// jobRun is one run of a plan. All times are since its start.
type jobRun struct {
	plan                   Plan
	contender              Contender
	start                  time.Time
	windowStart, windowEnd time.Duration // the window
	limit                  time.Duration // what ends later is not counted
	over                   atomic.Bool   // jobs do nothing any more and are not counted

	pacer      *pacer.Shared // of an open loop
	slots      chan struct{} // of a closed loop: a place for each job in flight
	submitted  atomic.Uint64
	shards     []countShard
	generators sync.WaitGroup
	generated  atomic.Bool // all has been submitted

	sampled                     atomic.Int64 // when observe sampled last
	peakGoroutines, peakWorkers atomic.Int64
	usedAtWindowStart           func() sample.Process // what was used until the window began
	lines                       lineWriter
}

func newJobRun(p Plan, side Contender, out io.Writer) *jobRun {
	r := &jobRun{
		plan: p, contender: side, lines: lineWriter{out: out}, start: time.Now(), windowStart: p.Warmup, windowEnd: p.Warmup + p.Duration,
		limit: p.Warmup + p.Duration + p.Drain, shards: newCountShards(), usedAtWindowStart: sync.OnceValue(processUsage),
	}
	if p.Rate > 0 {
		r.pacer = pacer.NewShared()
		r.pacer.Start(pacer.Curve{Begin: 1, PerSecond: p.Rate}, 0, r.windowStart, r.windowEnd)
	} else {
		n := p.Inflight
		if n == 0 {
			n = p.Workers
		}
		r.slots = make(chan struct{}, n)
	}
	return r
}

// processUsage is what this process has used, as far as the system tells.
func processUsage() sample.Process {
	s, _ := sample.Take(sample.CPU|sample.Memory, os.Getpid())
	return s.Total()
}

func (r *jobRun) now() time.Duration { return time.Since(r.start) }

// countShard is the shard of a job.
func (r *jobRun) shardOf(number uint64) *countShard { return &r.shards[number%uint64(len(r.shards))] }

// Run offers the jobs of a plan to one of the sides. It writes a Line each quarter of a
// second, and at last one with the Result. When ctx ends it does so early. It does not
// wait for a pool that hangs: goroutines of it may be left then. The error is a PlanError
// for a plan that makes no sense.
func Run(ctx context.Context, p Plan, sides Contenders, out io.Writer) error {
	if err := p.Validate(sides); err != nil {
		return err
	}
	if p.Memory > 0 {
		defer debug.SetMemoryLimit(debug.SetMemoryLimit(p.Memory / 10 * 9))
	}
	if p.Iterations == 0 {
		p.Iterations = MeasureIterations()
	}
	side, err := sides[p.Pool](p)
	if err != nil {
		return fmt.Errorf("jobload: making the pool %s: %w", p.Pool, err)
	}
	return newJobRun(p, side, out).submitAndReport(ctx)
}

func (r *jobRun) submitAndReport(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var reporter sync.WaitGroup
	stop := make(chan struct{})
	reporter.Go(func() { r.writeLinesUntil(stop) })
	r.startSubmitters(ctx)
	overran := r.waitForJobs(ctx)
	r.over.Store(true)
	end := min(r.now(), r.limit)
	cancel()
	answered := callWithTimeout(submitTimeout, r.generators.Wait)
	close(stop)
	reporter.Wait()
	r.samplePeaks(math.MaxInt64)
	result := r.newResult(end)
	if result.Overran = overran; !answered {
		result.Overran = fmt.Sprintf("a submission had not returned %v after the end", submitTimeout)
	}
	failed := r.lines.writeLastLine(Line{Result: result})
	if answered { // a pool may not be closed while a submission is under way
		callWithTimeout(closeTimeout, r.contender.Close)
	}
	return failed
}

// callWithTimeout calls f and reports whether it returned in time.
func callWithTimeout(d time.Duration, f func()) bool {
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

// waitForJobs waits until all jobs have been submitted and have ended, or for as long as the
// plan says. It returns why that was early, if it was.
func (r *jobRun) waitForJobs(ctx context.Context) (overran string) {
	end := time.NewTimer(r.limit)
	defer end.Stop()
	poll := time.NewTicker(pollInterval)
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
		if r.generated.Load() && r.countUnfinished() == 0 {
			return ""
		}
	}
}

// countUnfinished is how many jobs of the window have not ended.
func (r *jobRun) countUnfinished() (n uint64) {
	for i := range r.shards {
		t := &r.shards[i]
		t.mu.Lock()
		n += t.unfinished()
		t.mu.Unlock()
	}
	return n
}

// startSubmitters starts goroutines that submit all jobs of the plan, or those up to when ctx
// ends. So the load is what the plan says as long as any of them runs, and comes from one
// as long as that one does.
func (r *jobRun) startSubmitters(ctx context.Context) {
	loops := []func(g *submitter){r.submitWhenDone}
	if r.pacer != nil {
		loops = []func(g *submitter){func(g *submitter) { r.submitWhenDue(g, 0) }}
		for i := range reserveSubmitters {
			loops = append(loops, func(g *submitter) { r.submitWhenDue(g, reserveDelay<<i) })
		}
	}
	for _, loop := range loops {
		r.generators.Go(func() {
			runtime.LockOSThread() // see slice
			defer runtime.UnlockOSThread()
			g := &submitter{ctx: ctx, timer: time.NewTimer(time.Hour)}
			defer g.timer.Stop()
			loop(g)
			r.generated.Store(true)
		})
	}
}

// submitter is what one of the goroutines has that submit jobs.
type submitter struct {
	ctx   context.Context
	timer *time.Timer
	spare *Job // was rejected
}

func (g *submitter) sleep(d time.Duration) {
	g.timer.Reset(d)
	select {
	case <-g.timer.C:
	case <-g.ctx.Done():
	}
}

// submitWhenDue submits each job when it is due, those in reserve when it is late by more than
// their patience. What nobody has got to when Drain is over is missed.
func (r *jobRun) submitWhenDue(g *submitter, minLateness time.Duration) {
	for woke := r.now(); g.ctx.Err() == nil; {
		now := r.now()
		r.samplePeaks(now)
		due, ok := time.Duration(0), false
		if now-woke <= workSlice {
			due, ok = r.pacer.Take(now - minLateness)
		}
		switch next := r.pacer.NextDue(); {
		case ok:
			r.submitJob(g, due >= r.windowStart, now, now-due)
			continue
		case now > r.limit || next == pacer.Never:
			return
		case now-woke > workSlice:
			g.sleep(workPause)
		case minLateness == 0:
			g.sleep(next - now)
		default:
			g.sleep(minLateness)
		}
		woke = r.now()
	}
}

// submitWhenDone submits a job each time that one has ended.
func (r *jobRun) submitWhenDone(g *submitter) {
	ctx, cancel := context.WithTimeout(g.ctx, r.windowEnd)
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
		r.samplePeaks(now)
		if !r.submitJob(g, now >= r.windowStart, now, 0) {
			r.releaseSlot()
			g.sleep(retryDelay)
		}
	}
}

// submitJob submits a job now, which is late by so much. It reports whether the job was
// accepted.
func (r *jobRun) submitJob(g *submitter, inWindow bool, now, lateness time.Duration) bool {
	j := g.spare
	if j == nil || j.timer != nil {
		j = &Job{generator: r}
	}
	g.spare = nil
	j.number, j.inWindow, j.submitted = r.submitted.Add(1)-1, inWindow, now
	t := r.shardOf(j.number)
	if inWindow {
		t.mu.Lock()
		t.counts[nOffered]++
		if lateness > lateAfter {
			t.counts[nLate]++
		}
		recordDuration(t.lateness, lateness)
		t.mu.Unlock()
	}
	if r.contender.TrySubmit(j) {
		return true
	}
	g.spare = j
	if inWindow {
		t.mu.Lock()
		t.counts[nRejected]++
		t.mu.Unlock()
	}
	return false
}

// releaseSlot makes room for another job in a closed loop.
func (r *jobRun) releaseSlot() {
	if r.slots != nil {
		<-r.slots
	}
}

// samplePeaks counts goroutines and workers now and then, and notes what was used when the
// window begins. It makes no system call but at the beginning of
// the window.
func (r *jobRun) samplePeaks(now time.Duration) {
	if now >= r.windowStart && now != math.MaxInt64 {
		r.usedAtWindowStart()
	}
	before := r.sampled.Load()
	if now-time.Duration(before) < sampleInterval || !r.sampled.CompareAndSwap(before, int64(now)) {
		return
	}
	storeMax(&r.peakGoroutines, int64(runtime.NumGoroutine()))
	storeMax(&r.peakWorkers, int64(r.contender.Workers()))
}

// storeMax makes a value at least as great as n.
func storeMax(v *atomic.Int64, n int64) {
	for {
		if old := v.Load(); n <= old || v.CompareAndSwap(old, n) {
			return
		}
	}
}

// newResult is the Result by now. What the system does not tell stays 0.
func (r *jobRun) newResult(now time.Duration) *Result {
	p := &r.plan
	res := &Result{
		Pool: p.Pool, Work: p.Work, Rate: p.Rate, Warmup: p.Warmup, Duration: p.Duration,
		Elapsed: max(0, now-r.windowStart), Iterations: p.Iterations,
	}
	res.sumShards(r.shards)
	if r.pacer != nil && now >= r.windowStart {
		res.Missed = uint64(max(0, r.pacer.CountOverdue(now)-r.pacer.CountOverdue(r.windowStart-1)))
	}
	res.PeakGoroutines, res.PeakWorkers = int(r.peakGoroutines.Load()), int(r.peakWorkers.Load())
	res.Process = processUsage()
	before := res.Process
	if now >= r.windowStart {
		before = r.usedAtWindowStart()
	}
	res.User, res.System = res.User-before.User, res.System-before.System
	return res
}
