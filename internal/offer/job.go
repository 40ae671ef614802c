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
type Job struct {
	run       *run
	number    uint64
	submitted int64 // ns after the start of the run
	tally     *tally
	ctx       *jobContext
	do        func()
	open      atomic.Bool // it was offered and has not ended
}

// Func is Do as a value, which costs nothing.
func (j *Job) Func() func() { return j.do }

// Context is the job's context: it ends when the job can't be good any more. It is not to
// be used when the job has ended.
func (j *Job) Context() context.Context { return j.ctx }

// Do does what the job is there for. Its panics are counted and contained.
func (j *Job) Do() {
	if j.run.over.Load() || j.run.now() > j.run.limit {
		return
	}
	defer j.finish()
	keep(j.run.tasks.of(j.number).do())
}

// finish counts the job, unless it has ended too late for that. It is to be deferred.
func (j *Job) finish() {
	panicked := recover() != nil
	now := j.run.now()
	if now > j.run.limit {
		return
	}
	latency := now - j.submitted
	good := latency <= int64(j.run.plan.Deadline)
	j.end(func(t *tally) {
		t.finished++
		t.sum += latency
		t.most = max(t.most, latency)
		_ = t.latencies.RecordValue(min(latency, longest))
		if panicked {
			t.panicked++
		}
		if good {
			t.good++
			if j.run.within(now) {
				t.steady++
			}
		}
	})
}

// Expired says that the job won't run because its context has ended.
func (j *Job) Expired() { j.end(func(t *tally) { t.expired++ }) }

// Shed says that the job won't run although it was accepted and its context has not
// ended.
func (j *Job) Shed() { j.end(func(t *tally) { t.shed++ }) }

// end counts the end of the job, and gives it back.
func (j *Job) end(count func(*tally)) {
	if !j.open.CompareAndSwap(true, false) {
		panic("offer: the pool has ended a job twice")
	}
	j.ctx.end()
	t := j.tally
	t.mu.Lock()
	count(t)
	t.mu.Unlock()
	j.run.free(j)
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

// jobContext is a job's context: it ends at a time, and has a timer only if somebody
// waits for that. It is used for one job after the other, but no more once somebody has
// waited, so that who was told of its end sees the error, too.
type jobContext struct {
	run *run
	at  atomic.Int64 // ns after the start of the run

	mu     sync.Mutex
	timer  *time.Timer
	done   chan struct{}
	waited atomic.Bool
}

func (c *jobContext) left() time.Duration { return time.Duration(c.at.Load() - c.run.now()) }

// Deadline implements context.Context.
func (c *jobContext) Deadline() (time.Time, bool) {
	return c.run.start.Add(time.Duration(c.at.Load())), true
}

// Err implements context.Context.
func (c *jobContext) Err() error {
	if c.left() > 0 {
		return nil
	}
	return context.DeadlineExceeded
}

// Done implements context.Context.
func (c *jobContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.waited.Store(true)
		done := make(chan struct{})
		c.done, c.timer = done, time.AfterFunc(c.left(), func() { close(done) })
	}
	return c.done
}

// AfterFunc is what package context looks for, to do without a goroutine.
func (c *jobContext) AfterFunc(f func()) (stop func() bool) {
	c.waited.Store(true)
	return time.AfterFunc(c.left(), f).Stop
}

// Value implements context.Context.
func (c *jobContext) Value(any) any { return nil }

// end stops the timer.
func (c *jobContext) end() {
	if !c.waited.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
	}
}
