package jobload

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Plan is what is to be offered to which pool: the command line of a side.
type Plan struct {
	// Pool is the side, Work the shape of its jobs.
	Pool, Work string
	// Rate is how many jobs a second are due. 0 is a closed loop of Inflight
	// jobs, each submitted when one has ended; 0 of those is Workers.
	Rate     float64
	Inflight int
	// Warmup is for how long jobs are offered that are not counted, Duration for
	// how long then those that are, and Drain how long the last of them are
	// waited for after that.
	Warmup, Duration, Drain time.Duration
	// Deadline is how long after its submission a job must have ended to be
	// good.
	Deadline time.Duration
	// Workers and Queue bound a pool's workers and the jobs that wait for one,
	// where it has such bounds.
	Workers, Queue int
	// Memory is how many bytes the process may use; 0 is no limit. Nine tenths
	// of it are made Go's memory limit.
	Memory int64
	// Iterations is how many rounds of the loop are a millisecond of computing;
	// 0 has it measured.
	Iterations uint64
}

// The bounds of a plan.
const (
	maxRate       = 1e8
	maxTime       = time.Hour
	maxWorkers    = 1_000_000
	maxQueue      = 1 << 24
	minMemory     = 16 << 20
	maxMemory     = 1 << 50
	maxIterations = 1 << 40
)

// Flags are what flag.FlagSet and pflag.FlagSet have in common.
type Flags interface {
	StringVar(p *string, name, value, usage string)
	IntVar(p *int, name string, value int, usage string)
	Int64Var(p *int64, name string, value int64, usage string)
	Uint64Var(p *uint64, name string, value uint64, usage string)
	Float64Var(p *float64, name string, value float64, usage string)
	DurationVar(p *time.Duration, name string, value time.Duration, usage string)
}

// AddFlags adds the flags of a plan, one for each field.
func (p *Plan) AddFlags(f Flags, sides Contenders) {
	f.StringVar(&p.Pool, "pool", "", "offer jobs to this `POOL`: "+sortedKeys(sides))
	f.StringVar(&p.Work, "work", Published, "offer jobs of this `SHAPE`: "+sortedKeys(shapes))
	f.Float64Var(&p.Rate, "rate", 0, "offer as many jobs a second; 0 is a closed loop")
	f.IntVar(&p.Inflight, "inflight", 0, "with a closed loop, have as many jobs in flight (default: as --workers)")
	f.DurationVar(&p.Warmup, "warmup", 0, "offer jobs for this long before, which are not counted")
	f.DurationVar(&p.Duration, "duration", 10*time.Second, "offer jobs for this long")
	f.DurationVar(&p.Drain, "drain", 5*time.Second, "wait for the last jobs for this long")
	f.DurationVar(&p.Deadline, "deadline", time.Second, "a job is good that has ended this long after its submission")
	f.IntVar(&p.Workers, "workers", 5000, "bound a pool's workers")
	f.IntVar(&p.Queue, "queue", 100_000, "bound a pool's queue")
	f.Int64Var(&p.Memory, "memory", 0, "tell the runtime, and a pool that knows limits, to stay below as many `BYTES`; 0 is no limit")
	f.Uint64Var(&p.Iterations, "iterations", 0, "take as many rounds of the loop as a millisecond of computing; 0 has it measured")
}

// PlanError is an error of a plan: what was wrong, and what was expected.
type PlanError struct{ text string }

func (e PlanError) Error() string { return e.text }

func planErrorf(format string, args ...any) error { return PlanError{fmt.Sprintf(format, args...)} }

// Validate says what is wrong with a plan, with a PlanError.
func (p *Plan) Validate(sides Contenders) error {
	if sides[p.Pool] == nil {
		return planErrorf("--pool is %q; expected one of %s", p.Pool, sortedKeys(sides))
	}
	if shapes[p.Work] == nil {
		return planErrorf("--work is %q; expected one of %s", p.Work, sortedKeys(shapes))
	}
	switch {
	case !(p.Rate >= 0 && p.Rate <= maxRate): // also not a number
		return planErrorf("--rate is %v; expected 0 (a closed loop) to %.0f", p.Rate, maxRate)
	case p.Inflight > 0 && p.Rate > 0:
		return planErrorf("--inflight is %d with a --rate of %v; expected no --inflight, or a --rate of 0", p.Inflight, p.Rate)
	case p.Rate > 0 && p.Rate*p.Duration.Seconds() < 1 && p.Duration > 0:
		return planErrorf("--rate is %v with a --duration of %v; expected at least one job", p.Rate, p.Duration)
	case p.Memory != 0 && (p.Memory < minMemory || p.Memory > maxMemory):
		return planErrorf("--memory is %d; expected 0 (no limit), or %d to %d", p.Memory, minMemory, int64(maxMemory))
	case p.Iterations > maxIterations:
		return planErrorf("--iterations is %d; expected 0 (measured) to %d", p.Iterations, uint64(maxIterations))
	}
	return cmp.Or(
		checkRange("inflight", p.Inflight, 0, maxWorkers),
		checkRange("workers", p.Workers, 1, maxWorkers),
		checkRange("queue", p.Queue, 0, maxQueue),
		checkRange("warmup", p.Warmup, 0, maxTime),
		checkRange("duration", p.Duration, time.Millisecond, maxTime),
		checkRange("drain", p.Drain, 0, maxTime),
		checkRange("deadline", p.Deadline, time.Nanosecond, maxTime),
	)
}

func checkRange[T cmp.Ordered](flag string, v, min, max T) error {
	if v < min || v > max {
		return planErrorf("--%s is %v; expected %v to %v", flag, v, min, max)
	}
	return nil
}

// sortedKeys are the keys of a map in order.
func sortedKeys[T any](m map[string]T) string { return strings.Join(slices.Sorted(maps.Keys(m)), ", ") }
