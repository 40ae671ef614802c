package jobload

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/pool"
)

// Job is a job that is offered. The pool that accepts it calls exactly one of Do, Expired
// and Shed, once, on any goroutine. From then on it is not the pool's.
//
// It is its own context, which ends when it can't be good any more. The context has a
// timer only if somebody waits for its end.
type Job struct {
	generator *jobRun
	number    uint64
	inWindow  bool          // it was due in the window
	submitted time.Duration // since the start of the run
	ended     atomic.Bool

	mu    sync.Mutex // guards what follows
	timer *time.Timer
	done  chan struct{}
}

// Execute does what the job is there for, unless the run is over.
func (j *Job) Execute() {
	r := j.generator
	if r.over.Load() || r.now() > r.limit {
		return
	}
	taskForJob(r.plan.Work, j.number).computeAndWait(r.plan.Iterations)
	now := r.now()
	if now > r.limit {
		return // too late to be counted
	}
	latency := now - j.submitted
	good := latency <= r.plan.Deadline
	j.finishOnce(func(t *countShard) {
		if good && now >= r.windowStart && now < r.windowEnd {
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
		recordDuration(t.latencies, latency)
	})
	r.writeLineIfDue(now)
}

// MarkExpired says that the job won't run because its context has ended.
func (j *Job) MarkExpired() { j.countDropped(nExpired) }

// MarkShed says that the job won't run although it was accepted and its context has not
// ended.
func (j *Job) MarkShed() { j.countDropped(nShed) }

func (j *Job) countDropped(kind int) {
	j.finishOnce(func(t *countShard) {
		if j.inWindow {
			t.counts[kind]++
		}
	})
}

// finishOnce counts the end of the job.
func (j *Job) finishOnce(count func(*countShard)) {
	if !j.ended.CompareAndSwap(false, true) {
		panic("jobload: the pool has ended a job twice")
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
	j.generator.releaseSlot()
}

// Run implements pool.Job.
func (j *Job) Run(context.Context) { j.Execute() }

// Dropped implements pool.Dropper. A job that is dropped because the pool closes stays
// unfinished.
func (j *Job) Dropped(why error) {
	switch {
	case errors.Is(why, pool.ErrExpired):
		j.MarkExpired()
	case errors.Is(why, pool.ErrShed):
		j.MarkShed()
	}
}

func (j *Job) timeLeft() time.Duration {
	return j.submitted + j.generator.plan.Deadline - j.generator.now()
}

// Deadline implements context.Context.
func (j *Job) Deadline() (time.Time, bool) {
	return j.generator.start.Add(j.submitted + j.generator.plan.Deadline), true
}

// Err implements context.Context.
func (j *Job) Err() error {
	if j.timeLeft() > 0 {
		return nil
	}
	return context.DeadlineExceeded
}

// Done implements context.Context.
func (j *Job) Done() <-chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.done == nil {
		done := make(chan struct{})
		j.done, j.timer = done, time.AfterFunc(j.timeLeft(), func() { close(done) })
	}
	return j.done
}

// AfterFunc is what package context looks for, to do without a goroutine.
func (j *Job) AfterFunc(f func()) (stop func() bool) { return time.AfterFunc(j.timeLeft(), f).Stop }

// Value implements context.Context.
func (j *Job) Value(any) any { return nil }
