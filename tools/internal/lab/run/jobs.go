package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/tools/internal/jobload"
	"github.com/myriad-go/myriad/tools/internal/lab/probe"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
	"github.com/myriad-go/myriad/tools/internal/sample"
)

const (
	// jobsDrainTimeout limits the time in which a contender finishes its jobs after the last submission.
	jobsDrainTimeout = 5 * time.Second
	jobsOvertime     = 30 * time.Second // additional time before a process is terminated
	jobsKillDelay    = time.Second      // between termination and kill
	// maxAdaptiveWorkers limits the workers of a pool that adapts their number.
	maxAdaptiveWorkers = 5000 // as in the experiment of go-adaptive-pool
	// A number of workers becomes the best one if its rate is above calibrationGain times the best rate so far. The
	// search ends at a rate below calibrationLoss times the best.
	calibrationGain, calibrationLoss = 1.03, 0.9
	watchdogInterval                 = 20 * time.Millisecond
)

// jobsRun is the state of a run's Jobs phase. Only one goroutine may use it.
type jobsRun struct {
	*runner
	phase       scenario.Phase
	scenario    *scenario.Scenario
	earlierRuns []result.Run
	// iterations is the number of loop iterations in a millisecond of computing, or 0 if unknown. The first contender
	// measures this number for all contenders.
	iterations uint64
	overtime   time.Duration
}

func (j *jobsRun) runContenderAtPlannedRate(ctx context.Context, s scenario.Step, rec *result.Run) error {
	capacity, err := j.reuseOrMeasureShapeCapacity(ctx, rec)
	if err != nil {
		return err
	}
	rec.Jobs = &result.Jobs{Rate: float64(j.phase.Rate), Capacity: capacity.PerSecond, Window: j.phase.For.Std()}
	if rec.Jobs.Rate == 0 {
		rec.Jobs.Rate = math.Ceil(j.phase.Times * capacity.PerSecond)
	}
	return j.runContenderWithMemoryAndTimeLimits(ctx, rec, s.Subject, jobSettings{rate: rec.Jobs.Rate, queue: j.phase.Queue, workers: capacity.Workers})
}

type jobSettings struct {
	rate     float64 // 0 for a closed loop
	inFlight int     // jobs in flight in a closed loop
	queue    int
	workers  int // for contenders with a fixed number; others use up to maxAdaptiveWorkers
}

func (j *jobsRun) buildContenderCommand(s scenario.Subject, window time.Duration, o jobSettings) []string {
	if !s.Contender.FixedWorkers {
		o.workers = maxAdaptiveWorkers
	}
	command := s.CommandWithValues(scenario.PlaceholderValues{Self: j.self})
	add := func(name string, value any) { command = append(command, "--"+name, fmt.Sprint(value)) }
	add("work", j.phase.Shape)
	add("rate", fmt.Sprintf("%.0f", o.rate))
	if o.rate == 0 {
		add("inflight", o.inFlight)
	}
	if o.rate > 0 && j.phase.Burst > 1 {
		add("burst", j.phase.Burst)
	}
	add("warmup", j.phase.WarmUp)
	add("duration", window)
	add("drain", jobsDrainTimeout)
	add("deadline", j.phase.Deadline)
	add("queue", o.queue)
	add("memory", j.phase.Memory)
	add("workers", o.workers)
	if j.phase.Connections > 0 {
		add("connections", j.phase.Connections)
		add("sources", j.phase.Sources)
	}
	if j.iterations > 0 {
		add("iterations", j.iterations)
	}
	return command
}

// runContenderWithMemoryAndTimeLimits runs the process of a contender and stores the outcome in rec.Jobs. If the
// process exceeds its memory limit or its time limit, it is ended, and the last counts that it reported become the
// result. If a process exceeds the time limit before it reports any counts, runContenderWithMemoryAndTimeLimits returns
// an error.
func (j *jobsRun) runContenderWithMemoryAndTimeLimits(ctx context.Context, rec *result.Run, s scenario.Subject, o jobSettings) error {
	run, warmUp := rec.Jobs, j.phase.WarmUp.Std()
	run.Deadline = j.phase.Deadline.Std()
	rec.Command = j.buildContenderCommand(s, run.Window, o)
	bound := warmUp + run.Window + jobsDrainTimeout + j.overtime
	late := fmt.Errorf("the job generator took longer than %v", bound)
	ctx, cancel := context.WithTimeoutCause(ctx, bound, late)
	defer cancel()
	var line *timelineRecorder
	dog := memoryLimitKiller{maxBytes: j.phase.Memory}
	complete := false
	var warming *jobload.Result
	p, err := j.launcher.runAndReadLines(ctx, command{args: rec.Command, killDelay: jobsKillDelay}, func(p *process) {
		line = j.startTimeline(rec, p, nil)
		dog.start(p)
	}, func(text []byte) error {
		l, err := jobload.ParseOutputLine(text)
		switch {
		case err != nil:
			return err
		case l.Warming != nil:
			warming = l.Warming
		case l.Result != nil:
			run.Result, complete = l.Result, true
		default:
			run.Result = l.Progress
		}
		return nil
	})
	line.stopAndStoreTimeline()
	run.PeakRSS, run.Killed = dog.stop()
	if run.Killed != nil && run.Result == nil && warmUp > 0 {
		// The process was killed before the window began, so all counts of the window are zero.
		run.Killed.WarmingUp = true
		run.Result = &jobload.Result{Work: j.phase.Shape, Rate: run.Rate, Warmup: warmUp, Duration: run.Window}
		if warming != nil {
			run.Result.PeakRSS, run.Result.PeakGoroutines, run.Result.PeakWorkers = warming.PeakRSS, warming.PeakGoroutines, warming.PeakWorkers
		}
	}
	if run.Result != nil {
		run.PeakRSS = max(run.PeakRSS, run.Result.PeakRSS)
	}
	switch {
	case run.Killed != nil:
		return nil
	case errors.Is(err, late) && run.Result != nil:
		run.Result.Overran = fmt.Sprintf("%v, and was ended: its counts are of the first %.1f s of its window", late, run.Result.Elapsed.Seconds())
		return nil
	case err != nil:
		return err
	case !complete:
		return fmt.Errorf("%w; expected a line with its result first", p.newUnexpectedExitError("the job generator"))
	case p.err != nil:
		return p.newUnexpectedExitError("the job generator")
	}
	return nil
}

// reuseOrMeasureShapeCapacity returns the machine's capacity for jobs of the phase's shape (kind of job). It measures
// the capacity unless an earlier run has done so.
func (j *jobsRun) reuseOrMeasureShapeCapacity(ctx context.Context, rec *result.Run) (c *result.Capacity, err error) {
	for i := range j.earlierRuns {
		known := j.earlierRuns[i].Capacity
		if known == nil {
			continue
		}
		j.iterations = cmp.Or(known.Iterations, j.iterations)
		if known.Shape == j.phase.Shape {
			c = known
		}
	}
	if c == nil {
		j.progress.printFinalOrProgressLine(true, "calibrating "+j.phase.Shape)
		c = j.measureMachineCapacity(ctx)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("interrupted while measuring the capacity of %s: %w", j.phase.Shape, context.Cause(ctx))
		}
		rec.Capacity = c
	}
	if c.PerSecond <= 0 {
		return nil, fmt.Errorf("the capacity of %s could not be measured: %v", c.Shape, c.Tried)
	}
	return c, nil
}

func (j *jobsRun) measureMachineCapacity(ctx context.Context) *result.Capacity {
	c := &result.Capacity{Shape: j.phase.Shape}
	for _, fixed := range []bool{true, false} {
		for _, s := range j.scenario.Subjects {
			if s.Contender == nil || !s.Contender.MeasuresCapacity || s.Contender.FixedWorkers != fixed {
				continue
			}
			if !fixed {
				j.measureGoodputAndUpdateBest(ctx, c, s, 0, max(c.Workers, 1))
				continue
			}
			best := 0.0
			for workers := runtime.NumCPU(); workers <= 1024*runtime.NumCPU() && ctx.Err() == nil; workers *= 2 {
				rate := j.measureGoodputAndUpdateBest(ctx, c, s, workers, workers)
				if rate > best*calibrationGain {
					best, c.Workers = rate, workers
				}
				if rate < best*calibrationLoss {
					break
				}
			}
		}
	}
	c.Iterations = j.iterations
	return c
}

// measureGoodputAndUpdateBest measures the goodput of a contender: the number of jobs per second that end within their
// deadline. During the measurement, 2*workers jobs are always in the pool. If the contender adapts its number of
// workers, fixedWorkers is 0. The outcome is appended to bestSoFar.Tried. If the goodput is the highest so far, it is
// stored in bestSoFar.
func (j *jobsRun) measureGoodputAndUpdateBest(ctx context.Context, bestSoFar *result.Capacity, s scenario.Subject, fixedWorkers, workers int) (perSecond float64) {
	if ctx.Err() != nil {
		return 0
	}
	rec := &result.Run{Started: time.Now(), Jobs: &result.Jobs{Window: j.phase.CapacityRunTime()}}
	err := j.runContenderWithMemoryAndTimeLimits(ctx, rec, s, jobSettings{inFlight: 2 * workers, queue: max(j.phase.Queue, 2*workers), workers: fixedWorkers})
	name := s.Name
	if fixedWorkers > 0 {
		name = fmt.Sprintf("%s with %d workers", s.Name, fixedWorkers)
	}
	switch {
	case err != nil:
		bestSoFar.Tried = append(bestSoFar.Tried, name+": "+err.Error())
		return 0
	case rec.Jobs.Killed != nil:
		bestSoFar.Tried = append(bestSoFar.Tried, name+": "+rec.Jobs.Killed.String())
		return 0
	}
	perSecond = probe.Goodput(rec)
	j.iterations = rec.Jobs.Result.Iterations
	bestSoFar.Tried = append(bestSoFar.Tried, fmt.Sprintf("%s: %s/s", name, format.Whole(perSecond)))
	if perSecond > bestSoFar.PerSecond {
		bestSoFar.PerSecond, bestSoFar.Side = perSecond, name
	}
	return perSecond
}

// memoryLimitKiller kills a process that exceeds a memory limit. The caller must call stop.
type memoryLimitKiller struct {
	maxBytes int64
	cancel   context.CancelFunc
	running  sync.WaitGroup
	peakRSS  int64          // owned by the goroutine until stop, like killed
	killed   *result.Killed // nil if the process was not killed
}

func (w *memoryLimitKiller) start(p *process) {
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	w.running.Go(func() { w.killWhenOverLimit(ctx, p) })
}

func (w *memoryLimitKiller) killWhenOverLimit(ctx context.Context, p *process) {
	for began := time.Now(); ; {
		if s, err := sample.TakeSample(sample.Memory, p.pid()); err == nil { // otherwise it has ended or has no such figure
			total := s.SumOfProcesses()
			if w.peakRSS = max(w.peakRSS, total.PeakRSS); w.peakRSS > w.maxBytes {
				w.killed = &result.Killed{After: time.Since(began), RSS: w.peakRSS, Limit: w.maxBytes}
				_ = p.cmd.Process.Kill() // fails only if the process has ended
				return
			}
		}
		if sleepContext(ctx, watchdogInterval) != nil {
			return
		}
	}
}

// stop ends the memory checks and returns the peak memory in bytes. killed is nil if the process was not killed.
func (w *memoryLimitKiller) stop() (peakRSS int64, killed *result.Killed) {
	if w.cancel != nil {
		w.cancel()
		w.running.Wait()
	}
	return w.peakRSS, w.killed
}
