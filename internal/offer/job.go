package offer

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/myriad-go/myriad/pool"
)

// Job is a job that is offered. The pool that accepts it calls exactly one of Do,
// Expired and Shed, once, on any goroutine. From then on it is not the pool's.
type Job struct {
	run       *run
	number    uint64
	submitted int64  // ns after the start of the run
	shard     int    // of counters, and of free jobs
	tally     *tally // of the warm-up or of the window
	ctx       *jobContext
	do        func()
	next      *Job        // in a list of free jobs
	kept      bool        // it goes back there
	open      atomic.Bool // it was offered and has not ended
}

// Func is Do as a value, which costs nothing.
func (j *Job) Func() func() { return j.do }

// Context is the job's context: it ends when the job can't be good any more. It is
// not to be used when the job has ended.
func (j *Job) Context() context.Context { return j.ctx }

// Do does what the job is there for. Its panics are counted and contained.
func (j *Job) Do() {
	if j.run.over.Load() || j.run.now() > j.run.limit {
		return
	}
	defer j.finish()
	kept.keep(j.run.tasks.of(j.number).do())
}

// finish counts the job, unless it has ended too late for that. It is to be
// deferred.
func (j *Job) finish() {
	panicked := recover() != nil
	if now := j.run.now(); now <= j.run.limit {
		j.tally.finish(now-j.submitted, int64(j.run.plan.Deadline), j.run.within(now), panicked)
		j.end()
	}
}

// Expired says that the job won't run because its context has ended.
func (j *Job) Expired() {
	j.tally.expired.Add(1)
	j.end()
}

// Shed says that the job won't run although it was accepted and its context has
// not ended.
func (j *Job) Shed() {
	j.tally.shed.Add(1)
	j.end()
}

// end gives the job back to the generator.
func (j *Job) end() {
	if !j.open.CompareAndSwap(true, false) {
		panic("offer: the pool has ended a job twice")
	}
	j.ctx.end()
	if !j.kept {
		return
	}
	free := &j.run.free[j.shard].first
	for {
		first := free.Load()
		j.next = first
		if free.CompareAndSwap(first, j) {
			break
		}
	}
	j.run.woken()
}

// Run implements pool.Job.
func (j *Job) Run(context.Context) { j.Do() }

// Dropped implements pool.Dropper. One that is dropped because the pool closes
// stays unfinished.
func (j *Job) Dropped(why error) {
	switch {
	case errors.Is(why, pool.ErrExpired):
		j.Expired()
	case errors.Is(why, pool.ErrShed):
		j.Shed()
	}
}

// kept keeps the results of computing.
var kept sink

type sink struct{ any atomic.Bool }

// keep has a result be needed, and writes next to never.
func (s *sink) keep(result uint64) {
	if result == 0x5bd1e9955bd1e995 {
		s.any.Store(true)
	}
}
