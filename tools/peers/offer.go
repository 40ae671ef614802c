package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/alitto/pond/v2"
	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/panjf2000/ants/v2"

	"github.com/myriad-go/myriad/tools/internal/jobload"
)

// pools are the pools to compare with.
var pools = jobload.Contenders{"ants": newAnts, "pond": newPond, "failsafe": newFailsafe}

// Package ants makes a pool of its own, with two tickers, that nobody uses here.
func init() { ants.Release() }

// offerJobs is "peers offer": it offers jobs to one of the pools.
func offerJobs(ctx context.Context, args []string, out io.Writer) error {
	var plan jobload.Plan
	flags := flag.NewFlagSet("peers offer", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors are printed by run
	plan.AddFlags(flags, pools)
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			flags.SetOutput(out)
			fmt.Fprint(out, "Offer jobs to a pool in an open loop, and count what becomes of them.\n\n")
			flags.PrintDefaults()
			return err
		}
		return usagef("%w; expected flags as \"peers offer --help\" lists them", err)
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

// antsPool is github.com/panjf2000/ants, non-blocking. The generic form of a pool
// with one function takes a job without allocating. It has no queue that
// somebody could submit to without waiting, so --queue does not apply: with all
// workers busy it rejects. Its workers are made when needed and end after a second
// without work, as they do by default.
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

// pondPool is github.com/alitto/pond: at most --workers workers, which it makes
// when needed and ends when there is nothing to do, and a queue of --queue
// places that rejects when it is full. Go is its cheapest way in, without a
// future for each job.
type pondPool struct{ pond.Pool }

func newPond(p jobload.Plan) (jobload.Contender, error) {
	return pondPool{pond.NewPool(p.Workers, pond.WithQueueSize(p.Queue), pond.WithNonBlocking(true))}, nil
}

func (p pondPool) TrySubmit(j *jobload.Job) bool { return p.Go(j.Execute) == nil }
func (p pondPool) Workers() int                  { return int(p.RunningWorkers()) }
func (p pondPool) Close()                        { p.StopAndWait() }

// limiter is the adaptive limiter of github.com/failsafe-go/failsafe-go before a
// goroutine for each job. Its limit may go up to --workers and begins at a tenth
// of that, which is the proportion of its defaults (200 and 20). With --queue it
// queues, to the extent that the comment of BuildPrioritized gives as the default,
// twice to three times the limit; it has no bound in jobs. There are no
// priorities, since the jobs have none. A job waits for its permit until its
// deadline, and one that is past it when it has it does not run.
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
		go l.work(j, permit)
		return true
	}
	if !l.queues || !l.CanAcquirePermit() {
		return false
	}
	l.done.Add(1)
	go l.queue(j)
	return true
}

// queue has a job wait for its permit.
func (l *limiter) queue(j *jobload.Job) {
	permit, err := l.AcquirePermit(j)
	switch {
	case err == nil:
		l.work(j, permit)
		return
	case errors.Is(err, adaptivelimiter.ErrExceeded):
		j.MarkShed()
	default:
		j.MarkExpired()
	}
	l.done.Done()
}

// work does a job that has its permit.
func (l *limiter) work(j *jobload.Job, permit adaptivelimiter.Permit) {
	defer l.done.Done()
	if j.Err() != nil {
		permit.Drop()
		j.MarkExpired()
		return
	}
	j.Execute()
	permit.Record()
}
func (l *limiter) Workers() int { return l.Inflight() }
func (l *limiter) Close()       { l.done.Wait() }
