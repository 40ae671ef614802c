package lab

import (
	"context"
	"fmt"
	"runtime"
	"time"
)

// Capacity is how many jobs of a shape a second this machine can do.
type Capacity struct {
	Shape string `json:"shape"`
	// PerSecond is the most jobs a second that ended within their deadline, Side
	// what ran them.
	PerSecond float64 `json:"per_second"`
	Side      string  `json:"side"`
	// Workers is the best number of workers of the channel pool. Of two numbers
	// of which the larger is not better by 3 % the smaller is best.
	Workers int `json:"workers"`
	// Tried are the runs, in the order of time.
	Tried []Tried `json:"tried"`
}

// Tried is what a side did in a closed loop.
type Tried struct {
	Side      string  `json:"side"`
	Workers   int     `json:"workers,omitempty"`
	PerSecond float64 `json:"per_second"`
	// Why says what was wrong, "" if nothing.
	Why string `json:"why,omitempty"`
}

const (
	// maxCalibrating bounds one run that measures a capacity.
	maxCalibrating = 2 * time.Second
	// better is how much more jobs a larger number of workers has to do.
	better = 1.03
	// worse is how many of the best a number has to do that a still larger one
	// is tried.
	worse = 0.9
)

// calibrating is how long one run that measures a capacity takes.
func (o OverloadOptions) calibrating() time.Duration { return min(o.Duration, maxCalibrating) }

// workerLadder are the numbers of workers to try: 1 for each CPU, then twice as
// many each, to a thousand for each.
func workerLadder() (steps []int) {
	for n := 1; n <= 1024; n *= 2 {
		steps = append(steps, n*runtime.NumCPU())
	}
	return steps
}

// calibrate measures the capacity of each shape that the plan has.
func (o *overload) calibrate(ctx context.Context, report *OverloadReport) error {
	o.capacity = make(map[string]*Capacity)
	for _, s := range shapes {
		if !o.plan.has(s.name) {
			continue
		}
		o.say("calibrating " + s.name)
		c := &Capacity{Shape: s.name}
		o.capacity[s.name] = c
		measure := o.calibratePools
		if s.network {
			measure = o.calibrateServer
		}
		measure(ctx, s, c)
		report.Capacities = append(report.Capacities, c)
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted while it measured the capacity of %s: %w", s.name, ctx.Err())
		}
		if c.PerSecond <= 0 {
			return fmt.Errorf("the capacity of %s could not be measured: %v", s.name, c.Tried)
		}
	}
	return nil
}

// say tells Progress something.
func (o *overload) say(text string) {
	if o.Progress != nil {
		fmt.Fprintln(o.Progress, text)
	}
}

// calibratePools measures what the channel pool does with more and more workers,
// until that gets worse, and then what the adaptive pool does.
func (o *overload) calibratePools(ctx context.Context, s shape, c *Capacity) {
	best := 0.0
	for _, workers := range workerLadder() {
		if ctx.Err() != nil {
			return
		}
		rate := o.try(ctx, s, c, sideChannel, workers, workers)
		if rate > best*better {
			best, c.Workers = rate, workers
		}
		if rate < best*worse {
			break
		}
	}
	if c.Workers > 0 && ctx.Err() == nil {
		o.try(ctx, s, c, sideOurs, 0, c.Workers)
	}
}

// try runs a side in a closed loop that keeps two jobs for each of so many workers
// in flight, and returns how many a second ended within their deadline.
func (o *overload) try(ctx context.Context, s shape, c *Capacity, name string, told, workers int) float64 {
	run := OverloadRun{Warmup: o.Warmup, Window: o.calibrating(), Deadline: o.Deadline}
	o.offer(ctx, &run, o.commandOf(o.plan.sides[name], offering{
		shape: s, inFlight: 2 * workers, duration: run.Window, queue: max(o.Queue, 2*workers),
		workers: told, iterations: o.iterations,
	}))
	t := Tried{Side: name, Workers: told}
	switch {
	case run.Ended != nil:
		t.Why = run.Ended.String()
	case run.Error != "":
		t.Why = run.Error
	default:
		t.PerSecond = run.goodput()
		o.iterations = run.Result.Iterations
	}
	c.add(t)
	return t.PerSecond
}

// add keeps what was tried.
func (c *Capacity) add(t Tried) {
	c.Tried = append(c.Tried, t)
	if t.PerSecond > c.PerSecond {
		c.PerSecond, c.Side = t.PerSecond, t.Side
		if t.Workers > 0 {
			c.Side = fmt.Sprintf("%s with %d workers", t.Side, t.Workers)
		}
	}
}
