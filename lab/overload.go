package lab

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// OverloadOptions say how to run Overload. The zero value of each field is a good
// default. Of Options, Rounds is 3 by default, Duration 10 s, and Subjects are
// further sides, whose commands understand the flags of "myriad offer".
type OverloadOptions struct {
	Options
	// Memory is how many bytes a side may use, from 16 MiB. Default 2 GiB.
	Memory int64
	// Deadline is within which time from its submission a job has to end to be
	// of use, from 1 ms to an hour. Default 200 ms.
	Deadline time.Duration
	// Warmup is how long a side is under its load before anything is counted,
	// also when the capacity is measured, up to 20 minutes; negative is not at
	// all. Default 2 s.
	Warmup time.Duration
	// Queue is how many jobs may wait in a side that has a queue, from 1 to
	// 16,777,216. Default 1,024.
	Queue int
	// Peers is the executable of the module peers, which has further sides; ""
	// leaves them out.
	Peers string
	// Rules adds the pool of this repository without single rules, to see what
	// each is worth.
	Rules bool
	// Network adds the workloads through the network.
	Network bool
}

const (
	minMemory   = 16 << 20
	minDeadline = time.Millisecond
	maxDeadline = time.Hour
	maxWaiting  = 1 << 24
	// maxOffered is a third of an hour, the most that "myriad offer" takes.
	maxOffered = 20 * time.Minute
	// offerDrain is how long a side may take to end the jobs that it has when
	// no more are offered.
	offerDrain = 5 * time.Second
	// ownWorkers is how many workers a pool may have that finds the number by
	// itself: as many as in the published experiment.
	ownWorkers = 5000
	// offerSlack is how much longer than planned a run may take.
	offerSlack = 30 * time.Second
)

// filled is the options with their defaults, or a ScenarioError.
func (o OverloadOptions) filled() (OverloadOptions, error) {
	if o.Rounds == 0 {
		o.Rounds = 3
	}
	if o.Duration == 0 {
		o.Duration = 10 * time.Second
	}
	if o.Memory == 0 {
		o.Memory = 2 << 30
	}
	if o.Deadline == 0 {
		o.Deadline = 200 * time.Millisecond
	}
	if o.Warmup == 0 {
		o.Warmup = 2 * time.Second
	}
	o.Warmup = max(o.Warmup, 0)
	if o.Queue == 0 {
		o.Queue = 1024
	}
	if o.Peers != "" {
		path, err := filepath.Abs(o.Peers) // or it would be looked for in PATH
		if err != nil {
			return o, err
		}
		o.Peers = path
	}
	switch {
	case o.Rounds < 1 || o.Rounds > maxRounds:
		return o, wrong("%d rounds; expected 1 to %d", o.Rounds, maxRounds)
	case o.Duration < minDuration || o.Duration > maxOffered:
		return o, wrong("a duration of %v; expected %v to %v", o.Duration, minDuration, maxOffered)
	case o.Warmup > maxOffered:
		return o, wrong("a warm-up of %v; expected up to %v", o.Warmup, maxOffered)
	case o.Memory < minMemory:
		return o, wrong("a memory of %d bytes; expected at least %d", o.Memory, minMemory)
	case o.Deadline < minDeadline || o.Deadline > maxDeadline:
		return o, wrong("a deadline of %v; expected %v to %v", o.Deadline, minDeadline, maxDeadline)
	case o.Queue < 1 || o.Queue > maxWaiting:
		return o, wrong("a queue of %d; expected 1 to %d", o.Queue, maxWaiting)
	}
	return o, nil
}

// Overload asks what becomes of a pool, and of the process that it is in, when more
// jobs are offered than it can run. Each side is a process of its own that offers
// jobs to itself in an open loop; all have the same generator, jobs, deadline and
// memory. It takes as long as OverloadTakes says.
//
// First the capacity of each shape of job is measured: the most jobs a second that
// end within their deadline in a closed loop, with the best fixed number of workers
// or with the adaptive pool. All sides are told that best number, which favours
// them, but for the pool of this repository: it may have up to 5,000 workers.
//
// A run that fails, or that a watchdog ends because it takes more memory than
// allowed, is part of the report. When ctx ends, or the report cannot be written,
// the report so far is returned together with the error. When nothing could be
// started, such as with a ScenarioError, the report is nil. All processes that were
// started have ended when it returns.
func Overload(ctx context.Context, o OverloadOptions) (*OverloadReport, error) {
	o, err := o.filled()
	if err != nil {
		return nil, err
	}
	plan, err := o.plan()
	if err != nil {
		return nil, err
	}
	self, err := o.self()
	if err != nil {
		return nil, err
	}
	if o.Peers != "" {
		if _, err := os.Stat(o.Peers); err != nil {
			return nil, wrong("the executable of the peers: %v; expected it to be built: go build -C peers -o FILE .", err)
		}
	}
	out, err := o.openOut()
	if err != nil {
		return nil, err
	}
	r := &overload{OverloadOptions: o, plan: plan, self: self, launcher: newLauncher(), slack: offerSlack}
	defer r.launcher.close()
	report := r.newReport()
	if err := raiseFileLimit(); err != nil {
		report.note("The limit of open descriptors could not be raised: %v.", err)
	}
	err = r.all(ctx, report)
	report.Verdict = report.judge()
	return report, errors.Join(err, writeOut(out, report))
}

// overload is an Overload under way. It belongs to one goroutine.
type overload struct {
	OverloadOptions
	plan     *overloadPlan
	self     string
	launcher *launcher
	slack    time.Duration // offerSlack, but for tests
	capacity map[string]*Capacity
	// iterations of the work's loop are a millisecond of computing: all sides
	// are told what the first one has found, and do the same work. 0 is not
	// known yet.
	iterations uint64
}

// all measures the capacities, then runs the steps, until ctx ends.
func (o *overload) all(ctx context.Context, report *OverloadReport) error {
	if err := o.calibrate(ctx, report); err != nil {
		return err
	}
	p := newProgress(o.Progress, o.plan.steps)
	defer p.end()
	for i, s := range o.plan.steps {
		if ctx.Err() != nil {
			report.note("Interrupted in run %d of %d.", i+1, len(o.plan.steps))
			return fmt.Errorf("interrupted in run %d of %d: %w", i+1, len(o.plan.steps), ctx.Err())
		}
		p.show(i)
		report.Runs = append(report.Runs, o.run(ctx, s))
	}
	return nil
}

// run runs one step.
func (o *overload) run(ctx context.Context, s step) OverloadRun {
	load := o.plan.loads[s.workload.Name]
	capacity := o.capacity[load.shape.name]
	run := OverloadRun{
		Workload: s.workload.Name, Shape: load.shape.name, Load: load.name, Side: s.subject.Name, Round: s.round,
		Rate: load.rate, Warmup: o.Warmup, Window: load.duration, Deadline: o.Deadline,
	}
	if run.Rate == 0 {
		run.Rate = math.Ceil(load.factor * capacity.PerSecond)
	}
	side := o.plan.sides[s.subject.Name]
	if load.shape.network {
		o.serve(ctx, &run, side)
	} else {
		o.offer(ctx, &run, o.commandOf(side, offering{
			shape: load.shape, rate: run.Rate, duration: load.duration, queue: o.Queue,
			workers: capacity.Workers, iterations: o.iterations,
		}))
	}
	run.judge(capacity.PerSecond)
	return run
}

// offering is what is offered to a side.
type offering struct {
	shape    shape
	rate     float64 // 0 for a closed loop
	inFlight int     // of a closed loop
	duration time.Duration
	queue    int
	workers  int // to tell those that are told; the others may have ownWorkers
	// iterations are a millisecond of computing; 0 has the side find out.
	iterations uint64
}

// commandOf is the command line of a side.
func (o *overload) commandOf(s OverloadSide, f offering) []string {
	place := place{self: o.self, addr: "127.0.0.1:0"}
	command := Subject{Command: s.Command}.fill(place)
	add := func(name string, value any) { command = append(command, "--"+name, fmt.Sprint(value)) }
	add("work", f.shape.name)
	add("rate", formatRate(f.rate))
	if f.rate == 0 {
		add("inflight", f.inFlight)
	}
	add("warmup", o.Warmup)
	add("duration", f.duration)
	add("drain", offerDrain)
	add("deadline", o.Deadline)
	add("queue", f.queue)
	add("memory", o.Memory)
	if !s.Told {
		f.workers = ownWorkers
	}
	add("workers", f.workers)
	if f.iterations > 0 {
		add("iterations", f.iterations)
	}
	return append(command, s.More...)
}

// formatRate writes a rate without an exponent.
func formatRate(v float64) string { return fmt.Sprintf("%.0f", v) }

// OverloadTakes is about how long Overload takes with these options.
func OverloadTakes(o OverloadOptions) (time.Duration, error) {
	o, err := o.filled()
	if err != nil {
		return 0, err
	}
	plan, err := o.plan()
	if err != nil {
		return 0, err
	}
	return plan.takes(o), nil
}

// has says whether a plan has steps of a shape.
func (p *overloadPlan) has(shape string) bool {
	return slices.ContainsFunc(p.steps, func(s step) bool { return p.loads[s.workload.Name].shape.name == shape })
}
