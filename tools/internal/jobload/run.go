// Package jobload submits jobs to a pool at a fixed rate and counts the outcomes. In a comparison of pools under
// overload, each pool runs in its own process with this package.
//
// Jobs are due at fixed times, whether or not the pool keeps up (an open loop). A job's latency and deadline count from
// its submission, just before the pool is called. The lateness of submissions is reported separately: the generator
// shares the processors with the pool, and its delay is not the pool's latency. Every due job is submitted, late if
// necessary, or counted as missed. A pool therefore gains nothing by blocking its submitter (coordinated omission, G.
// Tene).
//
// One goroutine submits jobs. Reserve goroutines replace it while it is blocked. The pool's goroutines run the jobs.
// Progress is written by a dedicated goroutine or by a goroutine that has finished a job, whichever comes first,
// because among very many goroutines a single one may not run for seconds. Counts are sharded, and each shard has a
// lock. A job belongs to the generator until it is accepted, and then to the pool until it ends. Run waits for all
// goroutines, except those of a pool that hangs.
package jobload

import (
	"context"
	"fmt"
	"io"
	"math"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/tools/internal/pacer"
)

const (
	lateAfter = 10 * time.Millisecond
	// submitInterval is the minimum time from a submission to the next wake-up of a submitter. A late submitter instead
	// works for workSlice and sleeps for workPause.
	submitInterval = time.Millisecond
	workSlice      = 4 * time.Millisecond // less than 10 ms, after which Go would preempt the goroutine
	workPause      = 20 * time.Microsecond
	// reserveSubmitters is the number of reserve goroutines, which submit late jobs. The first one submits jobs that
	// are late by at least reserveDelay. Each further one waits for twice the lateness of the previous one.
	reserveSubmitters = 3
	reserveDelay      = 5 * time.Millisecond
	// retryDelay is the pause of a closed loop after a rejection.
	retryDelay = 100 * time.Microsecond
	// sampleInterval is the time between two counts of goroutines. reportInterval is the time between two output lines.
	sampleInterval = 50 * time.Millisecond
	reportInterval = 250 * time.Millisecond // short, because a killed process leaves only reported counts
	pollInterval   = time.Millisecond
	// rejectionSampling is the number of submissions of which one is timed.
	rejectionSampling = 16
	// submitTimeout limits the wait for a submission at the end, closeTimeout the wait for the pool's Close.
	submitTimeout, closeTimeout = 3 * time.Second, 2 * time.Second
)

// jobRun is the state of one run. Times count from the start of the run.
type jobRun struct {
	plan                   Plan
	contender              Contender
	start                  time.Time
	windowStart, windowEnd time.Duration // limits of the window
	limit                  time.Duration // jobs that end later are not counted
	over                   atomic.Bool   // jobs do nothing and are not counted

	pacer      *pacer.SharedPlan // set in an open loop
	slots      chan struct{}     // set in a closed loop: one slot per job in flight
	submitted  atomic.Uint64
	shards     []countShard
	generators sync.WaitGroup
	generated  atomic.Bool // all jobs have been submitted

	sampled                     atomic.Int64 // time of the last sample
	peakGoroutines, peakWorkers atomic.Int64
	usedAtWindowStart           func() processUsage // returns the usage up to the start of the window
	lines                       progressLineWriter
}

func newJobLoadRun(p Plan, contender Contender, out io.Writer) *jobRun {
	r := &jobRun{
		plan: p, contender: contender, lines: progressLineWriter{out: out}, start: time.Now(), windowStart: p.Warmup, windowEnd: p.Warmup + p.Duration,
		limit: p.Warmup + p.Duration + p.Drain, shards: newCountShards(), usedAtWindowStart: sync.OnceValue(ownProcessUsage),
	}
	if p.Rate > 0 {
		r.pacer = pacer.NewSharedPlan()
		r.pacer.Start(pacer.RateCurve{Begin: 1, PerSecond: p.Rate}, 0, r.windowStart, r.windowEnd)
	} else {
		n := p.Inflight
		if n == 0 {
			n = p.Workers
		}
		r.slots = make(chan struct{}, n)
	}
	return r
}

func (r *jobRun) now() time.Duration { return time.Since(r.start) }

func (r *jobRun) shardOf(number uint64) *countShard { return &r.shards[number%uint64(len(r.shards))] }

// Run submits the jobs of plan p to a pool from contenders. It writes JSON lines to the writer out: a progress line
// every quarter of a second, and a line with the Result at the end. If ctx ends, the run ends early and Run still
// writes the Result.
//
// If the plan is invalid, Run returns a PlanError. If the pool hangs, Run returns while goroutines of the pool still
// run. If p.Serve is set, Run serves jobs over HTTP instead of submitting jobs.
func Run(ctx context.Context, p Plan, contenders Contenders, out io.Writer) error {
	if err := p.Validate(contenders); err != nil {
		return err
	}
	if p.Memory > 0 {
		defer debug.SetMemoryLimit(debug.SetMemoryLimit(p.Memory / 10 * 9))
	}
	if p.Iterations == 0 {
		p.Iterations = MeasureSpinsPerMillisecond()
	}
	if p.Serve {
		return serveJobsOverHTTPUntilStdinEnds(ctx, p, out)
	}
	side, err := contenders[p.Pool](p)
	if err != nil {
		return fmt.Errorf("jobload: cannot create the pool %s: %w", p.Pool, err)
	}
	return newJobLoadRun(p, side, out).submitJobsAndWriteResult(ctx)
}

func (r *jobRun) submitJobsAndWriteResult(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var reporter sync.WaitGroup
	stop := make(chan struct{})
	reporter.Go(func() { r.sampleAndWriteLinesUntil(stop) })
	r.startSubmitters(ctx)
	overran := r.waitForJobsOrLimit(ctx)
	r.over.Store(true)
	end := min(r.now(), r.limit)
	cancel()
	answered := callWithTimeout(submitTimeout, r.generators.Wait)
	close(stop)
	reporter.Wait()
	r.samplePeaksAndUsageAtWindowStart(math.MaxInt64)
	result := r.buildResultSoFar(end)
	if s, ok := r.contender.(*serverContender); ok {
		s.measureRecoveryAndSetFigures(result)
	}
	if result.Overran = overran; !answered {
		result.Overran = fmt.Sprintf("a submission had not returned %v after the end", submitTimeout)
	}
	failed := r.lines.writeFinalLine(OutputLine{Result: result})
	if answered { // a pool must not be closed during a submission
		callWithTimeout(closeTimeout, r.contender.Close)
	}
	return failed
}

func callWithTimeout(d time.Duration, f func()) (returnedInTime bool) {
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

// waitForJobsOrLimit waits until all jobs of the measured window have ended, or until the time r.limit. If ctx ends
// first, earlyEndReason contains the cause. Otherwise, earlyEndReason is "".
func (r *jobRun) waitForJobsOrLimit(ctx context.Context) (earlyEndReason string) {
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
		if r.generated.Load() && r.countUnfinishedInWindow() == 0 {
			return ""
		}
	}
}

func (r *jobRun) countUnfinishedInWindow() (n uint64) {
	for i := range r.shards {
		t := &r.shards[i]
		t.mu.Lock()
		n += t.countUnfinishedJobs()
		t.mu.Unlock()
	}
	return n
}

func (r *jobRun) startSubmitters(ctx context.Context) {
	loops := []func(g *jobSubmitter){r.submitJobsAsSlotsFree}
	if r.pacer != nil {
		loops = []func(g *jobSubmitter){func(g *jobSubmitter) { r.submitJobsOnceLateBy(g, 0) }}
		for i := range reserveSubmitters {
			loops = append(loops, func(g *jobSubmitter) { r.submitJobsOnceLateBy(g, reserveDelay<<i) })
		}
	}
	for _, loop := range loops {
		// Do not lock the goroutine to a thread: each of its wake-ups would then stop another thread.
		r.generators.Go(func() {
			g := &jobSubmitter{ctx: ctx, timer: time.NewTimer(time.Hour)}
			defer g.timer.Stop()
			loop(g)
			r.generated.Store(true)
		})
	}
}

type jobSubmitter struct {
	ctx   context.Context
	timer *time.Timer
	spare *Job // a rejected job, to be reused
}

func (g *jobSubmitter) sleepOrUntilDone(d time.Duration) {
	g.timer.Reset(d)
	select {
	case <-g.timer.C:
	case <-g.ctx.Done():
	}
}

// submitJobsOnceLateBy submits the jobs that no other goroutine has submitted by minLateness after their planned time.
// With a minLateness of 0, it submits jobs on time. It returns after the last planned job, at the time r.limit, or when
// g.ctx ends.
func (r *jobRun) submitJobsOnceLateBy(g *jobSubmitter, minLateness time.Duration) {
	lastAt := -submitInterval // when a job was last submitted
	for woke := r.now(); g.ctx.Err() == nil; {
		now := r.now()
		r.samplePeaksAndUsageAtWindowStart(now)
		due, ok := time.Duration(0), false
		if now-woke <= workSlice {
			due, ok = r.pacer.TakeNextIfDue(now - minLateness)
		}
		switch next := r.pacer.NextDue(); {
		case ok:
			lastAt = now
			for range r.burstSizeAt(due) {
				if g.ctx.Err() != nil {
					break
				}
				now = r.now()
				r.submitJobCountingInWindow(g, due >= r.windowStart, now, now-due)
			}
			continue
		case now > r.limit || next == pacer.Never:
			return
		case now-woke > workSlice:
			g.sleepOrUntilDone(workPause)
		case minLateness == 0:
			g.sleepOrUntilDone(max(next, lastAt+submitInterval) - now)
		default:
			g.sleepOrUntilDone(minLateness)
		}
		woke = r.now()
	}
}

func (r *jobRun) burstSizeAt(due time.Duration) int {
	if due%time.Second < time.Second/10 {
		return max(r.plan.Burst, 1)
	}
	return 1
}

func (r *jobRun) submitJobsAsSlotsFree(g *jobSubmitter) {
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
		r.samplePeaksAndUsageAtWindowStart(now)
		if !r.submitJobCountingInWindow(g, now >= r.windowStart, now, 0) {
			r.releaseSlotIfClosedLoop()
			g.sleepOrUntilDone(retryDelay)
		}
	}
}

// submitJobCountingInWindow submits a job and reports whether the pool accepted it. If inWindow is set, it also counts
// the job and records its lateness.
func (r *jobRun) submitJobCountingInWindow(g *jobSubmitter, inWindow bool, now, lateness time.Duration) (accepted bool) {
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
		recordCappedDuration(t.lateness, lateness)
		t.mu.Unlock()
	}
	var submitting time.Duration
	timed := inWindow && j.number%rejectionSampling == 0
	if timed {
		submitting = r.now()
	}
	if r.contender.TrySubmit(j) {
		return true
	}
	g.spare = j
	if inWindow {
		t.mu.Lock()
		t.counts[nRejected]++
		if timed {
			recordCappedDuration(t.rejections, r.now()-submitting)
		}
		t.mu.Unlock()
	}
	return false
}

func (r *jobRun) releaseSlotIfClosedLoop() {
	if r.slots != nil {
		<-r.slots
	}
}

// samplePeaksAndUsageAtWindowStart updates the peak numbers of goroutines and workers, at most once per sampleInterval.
// At the start of the measured window, it also records the resource usage so far.
func (r *jobRun) samplePeaksAndUsageAtWindowStart(now time.Duration) {
	if now >= r.windowStart && now != math.MaxInt64 {
		r.usedAtWindowStart()
		if s, ok := r.contender.(*serverContender); ok {
			s.beginWindowAndRecordCPUOnce()
		}
	}
	before := r.sampled.Load()
	if now-time.Duration(before) < sampleInterval || !r.sampled.CompareAndSwap(before, int64(now)) {
		return
	}
	raiseToAtLeast(&r.peakGoroutines, int64(runtime.NumGoroutine()))
	raiseToAtLeast(&r.peakWorkers, int64(r.contender.Workers()))
}

func raiseToAtLeast(v *atomic.Int64, n int64) {
	for {
		if old := v.Load(); n <= old || v.CompareAndSwap(old, n) {
			return
		}
	}
}

func (r *jobRun) buildResultSoFar(now time.Duration) *Result {
	p := &r.plan
	res := &Result{
		Pool: p.Pool, Work: p.Work, Rate: p.Rate, Sources: p.Sources, Warmup: p.Warmup, Duration: p.Duration,
		Elapsed: max(0, now-r.windowStart), Iterations: p.Iterations,
	}
	res.setFiguresFromShards(r.shards)
	if r.pacer != nil && now >= r.windowStart {
		res.Missed = uint64(max(0, r.pacer.CountDueAndUntaken(now)-r.pacer.CountDueAndUntaken(r.windowStart-1)))
	}
	res.PeakGoroutines, res.PeakWorkers = int(r.peakGoroutines.Load()), int(r.peakWorkers.Load())
	var before processUsage
	if now >= r.windowStart {
		before = r.usedAtWindowStart() // call this first: the first call reads the usage, and used must not be older
	}
	used := ownProcessUsage()
	if now < r.windowStart {
		before = used
	}
	res.Process = used.Process
	res.User, res.System = used.User-before.User, used.System-before.System
	res.Voluntary, res.Involuntary = used.Voluntary-before.Voluntary, used.Involuntary-before.Involuntary
	if busy := used.busySeconds - before.busySeconds; busy > 0 {
		res.GCShare = (used.gcSeconds - before.gcSeconds) / busy
	}
	res.SchedP99 = used.schedulerLatencyQuantile(before, 0.99)
	return res
}
