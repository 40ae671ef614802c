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
	// what ran them. 0 is that it could not be measured.
	PerSecond float64 `json:"per_second"`
	Side      string  `json:"side"`
	// Workers is the best number of workers of the side that is told how many. Of two
	// numbers of which the larger is not better by 3 % the smaller is best.
	Workers int `json:"workers"`
	// Iterations of the work's loop are a millisecond of computing, as the first side
	// has found; 0 where none has said.
	Iterations uint64 `json:"iterations,omitempty"`
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

// Capacities are those that were measured, in the order of time. They are read off the
// records of the runs before which that was done.
func (r *Report) Capacities() []*Capacity { return capacities(r.Runs) }

func capacities(runs []RunRecord) (all []*Capacity) {
	for i := range runs {
		if f := runs[i].Overload; f != nil && f.Measured != nil {
			all = append(all, f.Measured)
		}
	}
	return all
}

// capacity is that of the shape of jobs: as an earlier run has it, or measured now, which
// the record of this run keeps.
func (o *overload) capacity(ctx context.Context, run *OverloadRun) (c *Capacity, err error) {
	for _, known := range capacities(o.before) {
		if known.Iterations > 0 {
			o.iterations = known.Iterations
		}
		if known.Shape == o.load.Shape {
			c = known
		}
	}
	if c == nil {
		o.progress.tell(true, "calibrating "+o.load.Shape)
		c = o.calibrate(ctx)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("interrupted while it measured the capacity of %s: %w", o.load.Shape, context.Cause(ctx))
		}
		run.Measured = c
	}
	if c.PerSecond <= 0 {
		return nil, fmt.Errorf("the capacity of %s could not be measured: %v", c.Shape, c.Tried)
	}
	return c, nil
}

// calibrate measures the capacity with each side of the scenario that is there for that,
// those first that are told a number of workers.
func (o *overload) calibrate(ctx context.Context) *Capacity {
	c := &Capacity{Shape: o.load.Shape}
	for _, told := range []bool{true, false} {
		for _, s := range o.scenario.Subjects {
			if s.Side == nil || !s.Side.Measures || s.Side.Told != told || s.Side.Server != o.load.network() {
				continue
			}
			switch {
			case ctx.Err() != nil:
				return c
			case s.Side.Server:
				o.tryServer(ctx, c, s)
			case told:
				o.climb(ctx, c, s)
			default:
				o.try(ctx, c, s, 0, max(c.Workers, 1))
			}
		}
	}
	c.Iterations = o.iterations
	return c
}

// calibrating is how long one run that measures a capacity takes.
func (w Workload) calibrating() time.Duration { return min(w.Duration, maxCalibrating) }

// calibrates is about how long it takes to measure the capacities of the scenario.
func (s *Scenario) calibrates() (all time.Duration) {
	done := make(map[string]bool)
	for _, w := range s.Workloads {
		if w.Offer != nil && !w.Optional && !done[w.Offer.Shape] {
			done[w.Offer.Shape] = true
			all += time.Duration(len(workerLadder())) * (w.WarmUp + w.calibrating() + time.Second)
		}
	}
	return all
}

// workerLadder are the numbers of workers to try: 1 for each CPU, then twice as
// many each, to a thousand for each.
func workerLadder() (steps []int) {
	for n := 1; n <= 1024; n *= 2 {
		steps = append(steps, n*runtime.NumCPU())
	}
	return steps
}

// climb tries more and more workers, until that gets worse.
func (o *overload) climb(ctx context.Context, c *Capacity, s Subject) {
	best := 0.0
	for _, workers := range workerLadder() {
		if ctx.Err() != nil {
			return
		}
		rate := o.try(ctx, c, s, workers, workers)
		if rate > best*better {
			best, c.Workers = rate, workers
		}
		if rate < best*worse {
			return
		}
	}
}

// try runs a side in a closed loop that keeps two jobs for each of so many workers
// in flight, and returns how many a second ended within their deadline.
func (o *overload) try(ctx context.Context, c *Capacity, s Subject, told, workers int) float64 {
	run := o.trying()
	o.offer(ctx, run, o.commandOf(s, offering{
		inFlight: 2 * workers, duration: run.Overload.Window, queue: max(o.load.Queue, 2*workers), workers: told,
	}))
	t := Tried{Side: s.Name, Workers: told, Why: run.unfit()}
	if t.Why == "" {
		t.PerSecond = run.Overload.goodput()
		o.iterations = run.Overload.Result.Iterations
	}
	c.add(t)
	return t.PerSecond
}

// trying is a record of a run that measures a capacity.
func (o *overload) trying() *RunRecord {
	return &RunRecord{Overload: &OverloadRun{
		Shape: o.load.Shape, Warmup: o.workload.WarmUp, Window: o.workload.calibrating(), Deadline: o.load.Deadline,
	}}
}

// unfit says why a run has no figures, "" if it has.
func (r *RunRecord) unfit() string {
	if r.Overload.Ended != nil {
		return r.Overload.Ended.String()
	}
	return r.Error
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
