package lab

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
)

// The workloads of kind Offering ask what becomes of a pool, and of the process that it is
// in, when more jobs are offered than it can run. Each side is a process of its own that
// offers jobs to itself in an open loop; all have the same generator, jobs, deadline and
// memory. Servers are offered lines by the lab.
//
// Before the first run of a shape its capacity is measured: the most jobs a second that
// end within their deadline in a closed loop, with the best fixed number of workers or
// with the adaptive pool. It is part of that run's record. All sides are told that best
// number, which favours them, but for the pool of this repository: it may have up to 5,000
// workers.

const (
	// offerDrain is how long a side may take to end the jobs that it has when
	// no more are offered.
	offerDrain = 5 * time.Second
	// ownWorkers is how many workers a pool may have that finds the number by
	// itself: as many as in the published experiment.
	ownWorkers = 5000
	// offerSlack is how much longer than planned a run may take.
	offerSlack = 30 * time.Second
)

var offeringRules = rules{
	check: checkOffering,
	estimate: func(w Workload) time.Duration {
		const ending = time.Second + 400*time.Millisecond // a side has ended most of what it has within a second
		return w.WarmUp + w.offered() + ending
	},
	bound: func(w Workload) time.Duration {
		tries := time.Duration(len(workerLadder()) + 1)
		return tries*(w.WarmUp+w.calibrating()+warmDrain+offerSlack) + w.WarmUp + w.offered() + warmDrain + offerDrain + 2*offerSlack
	},
	run:     runOffering,
	judge:   inRun,
	parts:   offeringParts,
	verdict: overloadVerdict,
}

// overload is a run of kind Offering under way. It belongs to one goroutine.
type overload struct {
	*runner
	workload Workload
	load     Offer         // the workload's, filled
	slack    time.Duration // offerSlack, but for tests
	// iterations of the work's loop are a millisecond of computing: all sides
	// are told what the first one has found, and do the same work. 0 is not
	// known yet.
	iterations uint64
}

// runOffering makes one run.
func runOffering(ctx context.Context, r *runner, s step, rec *RunRecord) error {
	o := &overload{runner: r, workload: s.workload, load: s.workload.Offer.filled(), slack: offerSlack}
	run := &OverloadRun{
		Shape: o.load.Shape, Load: o.load.load(), Rate: o.load.Rate,
		Warmup: s.workload.WarmUp, Window: s.workload.offered(), Deadline: o.load.Deadline,
	}
	rec.Overload = run
	capacity, err := o.capacity(ctx, run)
	if err != nil {
		return err
	}
	run.Capacity = capacity.PerSecond
	if run.Rate == 0 {
		run.Rate = math.Ceil(o.load.Times * capacity.PerSecond)
	}
	if s.subject.Side.Server {
		o.serve(ctx, rec, s.subject)
	} else {
		o.offer(ctx, rec, o.commandOf(s.subject, offering{
			rate: run.Rate, duration: run.Window, queue: o.load.Queue, workers: capacity.Workers,
		}))
	}
	rec.markOverload()
	if rec.Error != "" {
		return errors.New(rec.Error)
	}
	return nil
}

// offering is what is offered to a side.
type offering struct {
	rate     float64 // 0 for a closed loop
	inFlight int     // of a closed loop
	duration time.Duration
	queue    int
	workers  int // to tell those that are told; the others may have ownWorkers
}

// commandOf is the command line of a side.
func (o *overload) commandOf(s Subject, f offering) []string {
	command := s.fill(place{self: o.self, addr: "127.0.0.1:0"})
	add := func(name string, value any) { command = append(command, "--"+name, fmt.Sprint(value)) }
	add("work", o.load.Shape)
	add("rate", formatRate(f.rate))
	if f.rate == 0 {
		add("inflight", f.inFlight)
	}
	add("warmup", o.workload.WarmUp)
	add("duration", f.duration)
	add("drain", offerDrain)
	add("deadline", o.load.Deadline)
	add("queue", f.queue)
	add("memory", o.load.Memory)
	if !s.Side.Told {
		f.workers = ownWorkers
	}
	add("workers", f.workers)
	if o.iterations > 0 {
		add("iterations", o.iterations)
	}
	return command
}

// formatRate writes a rate without an exponent.
func formatRate(v float64) string { return fmt.Sprintf("%.0f", v) }
