package offer

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
	run       *run
	number    uint64
	counted   bool          // it was due in the window
	submitted time.Duration // since the start of the run
	ended     atomic.Bool

	mu    sync.Mutex // guards what follows
	timer *time.Timer
	done  chan struct{}
}

// Do does what the job is there for, unless the run is over.
func (j *Job) Do() {
	r := j.run
	if r.over.Load() || r.now() > r.limit {
		return
	}
	taskOf(r.plan.Work, j.number).do(r.plan.Iterations)
	now := r.now()
	if now > r.limit {
		return // too late to be counted
	}
	latency := now - j.submitted
	good := latency <= r.plan.Deadline
	j.end(func(t *tally) {
		if good && now >= r.opens && now < r.closes {
			t.counts[nSteady]++
		}
		if !j.counted {
			return
		}
		t.counts[nFinished]++
		if good {
			t.counts[nGood]++
		}
		t.sum += latency
		t.max = max(t.max, latency)
		record(t.latencies, latency)
	})
	r.say(now)
}

// Expired says that the job won't run because its context has ended.
func (j *Job) Expired() { j.drop(nExpired) }

// Shed says that the job won't run although it was accepted and its context has not
// ended.
func (j *Job) Shed() { j.drop(nShed) }

func (j *Job) drop(as int) {
	j.end(func(t *tally) {
		if j.counted {
			t.counts[as]++
		}
	})
}

// end counts the end of the job.
func (j *Job) end(count func(*tally)) {
	if !j.ended.CompareAndSwap(false, true) {
		panic("offer: the pool has ended a job twice")
	}
	j.mu.Lock()
	if j.timer != nil {
		j.timer.Stop()
	}
	j.mu.Unlock()
	t := j.run.tally(j.number)
	t.mu.Lock()
	count(t)
	t.mu.Unlock()
	j.run.release()
}

// Run implements pool.Job.
func (j *Job) Run(context.Context) { j.Do() }

// Dropped implements pool.Dropper. A job that is dropped because the pool closes stays
// unfinished.
func (j *Job) Dropped(why error) {
	switch {
	case errors.Is(why, pool.ErrExpired):
		j.Expired()
	case errors.Is(why, pool.ErrShed):
		j.Shed()
	}
}

func (j *Job) left() time.Duration { return j.submitted + j.run.plan.Deadline - j.run.now() }

// Deadline implements context.Context.
func (j *Job) Deadline() (time.Time, bool) {
	return j.run.start.Add(j.submitted + j.run.plan.Deadline), true
}

// Err implements context.Context.
func (j *Job) Err() error {
	if j.left() > 0 {
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
		j.done, j.timer = done, time.AfterFunc(j.left(), func() { close(done) })
	}
	return j.done
}

// AfterFunc is what package context looks for, to do without a goroutine.
func (j *Job) AfterFunc(f func()) (stop func() bool) { return time.AfterFunc(j.left(), f).Stop }

// Value implements context.Context.
func (j *Job) Value(any) any { return nil }
