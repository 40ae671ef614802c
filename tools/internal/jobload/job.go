package jobload

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/pool"
)

// Job is a submitted job, and a context.Context that ends at the job's deadline.
//
// A pool that accepts a job must call exactly one of Execute, CountAsFinished, CountAsExpired and CountAsShed, on any
// goroutine. After this call, the pool must not use the job. A pool that is being closed may drop jobs without a call.
type Job struct {
	generator *jobRun
	number    uint64
	inWindow  bool          // the job was due in the window
	submitted time.Duration // time of submission since the start of the run
	ended     atomic.Bool

	mu    sync.Mutex // guards the following fields
	timer *time.Timer
	done  chan struct{}
}

// Execute does the job's work and counts the job as finished. After the run has ended, Execute does nothing.
func (j *Job) Execute() {
	r := j.generator
	if r.over.Load() || r.now() > r.limit {
		return
	}
	now := r.now()
	inMiddle := now >= r.windowStart+r.plan.Duration/3 && now < r.windowEnd-r.plan.Duration/3
	pickTaskForJob(r.plan.Work, j.number).allocateComputeAndWait(r.plan.Iterations, inMiddle)
	j.CountAsFinished()
}

// CountAsFinished counts a job that has run. A pool that runs jobs in another process calls it instead of Execute.
func (j *Job) CountAsFinished() {
	r := j.generator
	now := r.now()
	if r.over.Load() || now > r.limit {
		return // too late to be counted
	}
	latency := now - j.submitted
	good := latency <= r.plan.Deadline
	j.mustCountEndAndFreeSlot(func(t *countShard) {
		switch {
		case !good:
		case now < r.windowStart:
			t.counts[nStarting]++
		case now < r.windowEnd:
			t.counts[nSteady]++
		}
		if !j.inWindow {
			return
		}
		t.counts[nFinished]++
		if good {
			t.counts[nGood]++
		}
		t.sum += latency
		t.max = max(t.max, latency)
		recordCappedDuration(t.latencies, latency)
	})
	r.writeProgressLineIfDue(now)
}

// CountAsExpired counts a job that the pool drops because the job's deadline has passed.
func (j *Job) CountAsExpired() { j.endWithoutRunning(nExpired) }

// CountAsShed counts an accepted job that the pool drops before the job's deadline.
func (j *Job) CountAsShed() { j.endWithoutRunning(nShed) }

func (j *Job) endWithoutRunning(counterIndex int) {
	j.mustCountEndAndFreeSlot(func(t *countShard) {
		if !j.inWindow {
			return
		}
		if t.counts[counterIndex]++; counterIndex == nShed {
			recordCappedDuration(t.shed, j.generator.now()-j.submitted)
		}
	})
}

func (j *Job) mustCountEndAndFreeSlot(count func(*countShard)) {
	if !j.ended.CompareAndSwap(false, true) {
		panic("jobload: the pool ended a job twice")
	}
	j.mu.Lock()
	if j.timer != nil {
		j.timer.Stop()
	}
	j.mu.Unlock()
	t := j.generator.shardOf(j.number)
	t.mu.Lock()
	count(t)
	t.mu.Unlock()
	j.generator.releaseSlotIfClosedLoop()
}

// Run implements pool.Job.
func (j *Job) Run(context.Context) { j.Execute() }

// Dropped implements pool.Dropper. It counts a job that has expired or was shed.
func (j *Job) Dropped(expiredOrShedErr error) {
	switch {
	case errors.Is(expiredOrShedErr, pool.ErrExpired):
		j.CountAsExpired()
	case errors.Is(expiredOrShedErr, pool.ErrShed):
		j.CountAsShed()
	}
}

func (j *Job) timeUntilDeadline() time.Duration {
	return j.submitted + j.generator.plan.Deadline - j.generator.now()
}

// Deadline implements context.Context.
func (j *Job) Deadline() (time.Time, bool) {
	return j.generator.start.Add(j.submitted + j.generator.plan.Deadline), true
}

// Err implements context.Context.
func (j *Job) Err() (deadlineErr error) {
	if j.timeUntilDeadline() > 0 {
		return nil
	}
	return context.DeadlineExceeded
}

// Done implements context.Context.
func (j *Job) Done() (closedAtDeadline <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.done == nil {
		done := make(chan struct{})
		j.done, j.timer = done, time.AfterFunc(j.timeUntilDeadline(), func() { close(done) })
	}
	return j.done
}

// AfterFunc calls f at the job's deadline. Package context uses AfterFunc for contexts that are derived from the job.
func (j *Job) AfterFunc(f func()) (stop func() bool) {
	return time.AfterFunc(j.timeUntilDeadline(), f).Stop
}

// Value implements context.Context.
func (j *Job) Value(any) any { return nil }
