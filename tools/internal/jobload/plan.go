package jobload

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Plan describes a pool and the jobs to submit to it.
type Plan struct {
	// Pool is the name of a pool in Contenders. Work is the shape of the jobs, such as Mixed.
	Pool, Work string
	// Rate is the number of jobs to submit per second. If Rate is 0, Run submits a new job whenever fewer than Inflight
	// jobs are in the pool. An Inflight of 0 means the number in Workers.
	Rate     float64
	Inflight int
	// Burst multiplies the rate in the first tenth of each second. With 0 or 1, the rate is constant.
	Burst int
	// Warmup is the initial time in which jobs are submitted but not counted. Duration is the time after that, in which
	// jobs are counted. Drain limits the wait for the last jobs.
	Warmup, Duration, Drain time.Duration
	// Deadline is the time within which a job must end to count as good. The time begins when the job is submitted.
	Deadline time.Duration
	// Workers and Queue limit the workers and the queued jobs of a pool, if the pool has such limits.
	Workers, Queue int
	// Memory is the memory limit of the process in bytes. 0 means no limit. Run sets the memory limit of the Go runtime
	// to 90 % of Memory.
	Memory int64
	// Iterations is the number of loop iterations that take a millisecond. If Iterations is 0, Run measures the number.
	Iterations uint64
	// Connections is the number of connections to a server. Sources is the number of further local addresses (light
	// users), which together open one in eleven of the connections. One address opens all others.
	Connections, Sources int
	// Serve makes Run serve jobs over HTTP instead of submitting jobs. Run starts such a process if the pool is a
	// server.
	Serve bool
}

const (
	maxRate       = 1e8
	maxBurst      = 1000
	maxTime       = time.Hour
	maxWorkers    = 1_000_000
	maxQueue      = 1 << 24
	minMemory     = 16 << 20
	maxMemory     = 1 << 50
	maxIterations = 1 << 40
	// maxConnections leaves room below the 20,000 descriptors that many machines allow a process.
	maxConnections = 16_000
	maxSources     = 1 << 15
)

// Flags contains the methods that flag.FlagSet and pflag.FlagSet have in common.
type Flags interface {
	StringVar(p *string, name, value, usage string)
	IntVar(p *int, name string, value int, usage string)
	Int64Var(p *int64, name string, value int64, usage string)
	BoolVar(p *bool, name string, value bool, usage string)
	Uint64Var(p *uint64, name string, value uint64, usage string)
	Float64Var(p *float64, name string, value float64, usage string)
	DurationVar(p *time.Duration, name string, value time.Duration, usage string)
}

func (p *Plan) AddFlags(f Flags, contenders Contenders) {
	f.StringVar(&p.Pool, "pool", "", "submit jobs to this `POOL` (required): "+joinSortedKeys(contenders))
	f.StringVar(&p.Work, "work", Published, "submit jobs of this `SHAPE`: "+joinSortedKeys(shapes))
	f.Float64Var(&p.Rate, "rate", 0, "jobs to submit per second (default 0: a closed loop)")
	f.IntVar(&p.Inflight, "inflight", 0, "jobs in flight in a closed loop (default: the value of --workers)")
	f.IntVar(&p.Burst, "burst", 1, "multiply --rate by this in the first tenth of each second")
	f.DurationVar(&p.Warmup, "warmup", 0, "first submit jobs for this long without counting them (default 0s)")
	f.DurationVar(&p.Duration, "duration", 10*time.Second, "after --warmup, submit jobs for this long and count them")
	f.DurationVar(&p.Drain, "drain", 5*time.Second, "wait at most this long for the last jobs")
	f.DurationVar(&p.Deadline, "deadline", time.Second, "time after submission within which a job must finish to count as good")
	f.IntVar(&p.Workers, "workers", 5000, "limit for the pool's workers")
	f.IntVar(&p.Queue, "queue", 100_000, "limit for the pool's queue")
	f.Int64Var(&p.Memory, "memory", 0, "memory limit of the runtime, and of a pool that supports one, in `BYTES` (default 0: no limit)")
	f.IntVar(&p.Connections, "connections", 2000, "connections, if --pool is a server")
	f.IntVar(&p.Sources, "sources", 0, "open one in eleven of --connections from `N` further addresses 127.1.x.x, which share them (default 0: all from one address)")
	f.BoolVar(&p.Serve, "serve", false, "serve the jobs over HTTP until the standard input ends, instead of submitting them")
	f.Uint64Var(&p.Iterations, "iterations", 0, "rounds of the work loop per millisecond of computing (default 0: measured first)")
}

// PlanError describes an invalid value in a Plan. The text states the valid values.
type PlanError struct{ text string }

func (e PlanError) Error() string { return e.text }

func planErrorf(format string, args ...any) error { return PlanError{fmt.Sprintf(format, args...)} }

// Validate returns a PlanError if the plan is invalid.
func (p *Plan) Validate(contenders Contenders) error {
	if contenders[p.Pool] == nil {
		return planErrorf("--pool is %q; expected one of %s", p.Pool, joinSortedKeys(contenders))
	}
	if shapes[p.Work] == nil {
		return planErrorf("--work is %q; expected one of %s", p.Work, joinSortedKeys(shapes))
	}
	switch {
	case !(p.Rate >= 0 && p.Rate <= maxRate): // also rejects NaN
		return planErrorf("--rate is %v; expected 0 (a closed loop) to %.0f", p.Rate, maxRate)
	case p.Burst > 1 && p.Rate == 0:
		return planErrorf("--burst is %d with a --rate of 0; expected a --rate above 0", p.Burst)
	case p.Inflight > 0 && p.Rate > 0:
		return planErrorf("--inflight is %d with a --rate of %v; expected no --inflight, or a --rate of 0", p.Inflight, p.Rate)
	case p.Rate > 0 && p.Rate*p.Duration.Seconds() < 1 && p.Duration > 0:
		return planErrorf("--rate is %v with a --duration of %v; expected values that result in at least one job", p.Rate, p.Duration)
	case p.Memory != 0 && (p.Memory < minMemory || p.Memory > maxMemory):
		return planErrorf("--memory is %d; expected 0 (no limit), or %d to %d", p.Memory, minMemory, int64(maxMemory))
	case p.Iterations > maxIterations:
		return planErrorf("--iterations is %d; expected 0 (measured) to %d", p.Iterations, uint64(maxIterations))
	}
	return cmp.Or(
		checkFlagRange("burst", p.Burst, 0, maxBurst),
		checkFlagRange("inflight", p.Inflight, 0, maxWorkers),
		checkFlagRange("connections", p.Connections, 0, maxConnections),
		checkFlagRange("sources", p.Sources, 0, min(p.Connections/11, maxSources)),
		checkFlagRange("workers", p.Workers, 1, maxWorkers),
		checkFlagRange("queue", p.Queue, 0, maxQueue),
		checkFlagRange("warmup", p.Warmup, 0, maxTime),
		checkFlagRange("duration", p.Duration, time.Millisecond, maxTime),
		checkFlagRange("drain", p.Drain, 0, maxTime),
		checkFlagRange("deadline", p.Deadline, time.Nanosecond, maxTime),
	)
}

func checkFlagRange[T cmp.Ordered](flag string, v, min, max T) error {
	if v < min || v > max {
		return planErrorf("--%s is %v; expected %v to %v", flag, v, min, max)
	}
	return nil
}

func joinSortedKeys[T any](m map[string]T) string {
	return strings.Join(slices.Sorted(maps.Keys(m)), ", ")
}
