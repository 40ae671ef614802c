package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alitto/pond/v2"
	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/panjf2000/ants/v2"
	conc "github.com/sourcegraph/conc/pool"

	"github.com/myriad-go/myriad/tools/internal/jobload"
)

var pools = jobload.Contenders{"ants": newAnts, "pond": newPond, "failsafe": newFailsafe, "conc": newConc}

// Package ants creates a pool with two tickers itself, which is not used here.
func init() { ants.Release() }

// offerJobs implements "peers offer": it submits jobs to one of the pools.
func offerJobs(ctx context.Context, args []string, out io.Writer) error {
	var plan jobload.Plan
	flags := flag.NewFlagSet("peers offer", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // run prints errors
	plan.AddFlags(flags, pools)
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			flags.SetOutput(out)
			fmt.Fprint(out, "Submit jobs to a pool in an open loop, and count the results.\n\n")
			flags.PrintDefaults()
			return err
		}
		return usagef("%w; \"peers offer --help\" lists the flags", err)
	}
	if flags.NArg() > 0 {
		return usagef("unexpected argument %q; expected flags only", flags.Arg(0))
	}
	err := jobload.Run(ctx, plan, pools, out)
	if wrong, ok := errors.AsType[jobload.PlanError](err); ok {
		return usageError{wrong}
	}
	return err
}

// antsPool is github.com/panjf2000/ants, non-blocking. The generic pool with one function accepts a job
// without allocating. It has no queue that one can submit to without waiting, so --queue does not apply: it
// rejects when all workers are busy. Workers start on demand and end after a second without work, as by
// default.
type antsPool struct {
	*ants.PoolWithFuncGeneric[*jobload.Job]
}

func newAnts(p jobload.Plan) (jobload.Contender, error) {
	made, err := ants.NewPoolWithFuncGeneric(p.Workers, (*jobload.Job).Execute, ants.WithNonblocking(true))
	return antsPool{made}, err
}

func (a antsPool) TrySubmit(j *jobload.Job) bool { return a.Invoke(j) == nil }
func (a antsPool) Workers() int                  { return a.Running() }
func (a antsPool) Close()                        { a.ReleaseTimeout(time.Minute) }

// pondPool is github.com/alitto/pond with at most --workers workers, which start on demand and end when idle,
// and a queue of --queue jobs that rejects when it is full. Go is its cheapest method, without a future for
// each job.
type pondPool struct{ pond.Pool }

func newPond(p jobload.Plan) (jobload.Contender, error) {
	return pondPool{pond.NewPool(p.Workers, pond.WithQueueSize(p.Queue), pond.WithNonBlocking(true))}, nil
}

func (p pondPool) TrySubmit(j *jobload.Job) bool { return p.Go(j.Execute) == nil }
func (p pondPool) Workers() int                  { return int(p.RunningWorkers()) }
func (p pondPool) Close()                        { p.StopAndWait() }

// concPool is github.com/sourcegraph/conc/pool with --workers goroutines. It has no queue, and no submission that does
// not wait: TrySubmit waits for a goroutine. --queue does not apply.
type concPool struct {
	*conc.Pool
	running atomic.Int64
}

func newConc(p jobload.Plan) (jobload.Contender, error) {
	return &concPool{Pool: conc.New().WithMaxGoroutines(p.Workers)}, nil
}

func (c *concPool) TrySubmit(j *jobload.Job) bool {
	c.Go(func() {
		c.running.Add(1)
		defer c.running.Add(-1)
		j.Execute()
	})
	return true
}
func (c *concPool) Workers() int { return int(c.running.Load()) }
func (c *concPool) Close()       { c.Wait() }

// limiter combines the adaptive limiter of github.com/failsafe-go/failsafe-go with a goroutine for each job.
// Its limit is at most --workers and starts at a tenth of that, the ratio of its defaults (200 and 20). With
// --queue it queues two to three times the limit, the default according to BuildPrioritized's documentation;
// the number of jobs is not limited. Jobs have no priorities. A job waits for its permit until its deadline
// and does not run after it.
type limiter struct {
	adaptivelimiter.AdaptiveLimiter[any]
	queues bool
	done   sync.WaitGroup
}

func newFailsafe(p jobload.Plan) (jobload.Contender, error) {
	b := adaptivelimiter.NewBuilder[any]().WithLimits(1, uint(p.Workers), uint(max(1, p.Workers/10)))
	if p.Queue > 0 {
		b = b.WithQueueing(2, 3)
	}
	return &limiter{AdaptiveLimiter: b.Build(), queues: p.Queue > 0}, nil
}

func (l *limiter) TrySubmit(j *jobload.Job) bool {
	if permit, ok := l.TryAcquirePermit(); ok {
		l.done.Add(1)
		go l.runJob(j, permit)
		return true
	}
	if !l.queues || !l.CanAcquirePermit() {
		return false
	}
	l.done.Add(1)
	go l.waitForPermit(j)
	return true
}

func (l *limiter) waitForPermit(j *jobload.Job) {
	permit, err := l.AcquirePermit(j)
	switch {
	case err == nil:
		l.runJob(j, permit)
		return
	case errors.Is(err, adaptivelimiter.ErrExceeded):
		j.CountAsShed()
	default:
		j.CountAsExpired()
	}
	l.done.Done()
}

func (l *limiter) runJob(j *jobload.Job, permit adaptivelimiter.Permit) {
	defer l.done.Done()
	if j.Err() != nil {
		permit.Drop()
		j.CountAsExpired()
		return
	}
	j.Execute()
	permit.Record()
}
func (l *limiter) Workers() int { return l.Inflight() }
func (l *limiter) Close()       { l.done.Wait() }
