package offer

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/myriad-go/myriad/pool"
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
	// Off names the rules that our pool is to do without.
	Off string
	// Seed decides the order of jobs that differ.
	Seed uint64
	// Wait, CPU and Bytes are what a job does; less than 0 is what its shape
	// says.
	Wait, CPU time.Duration
	Bytes     int
	// Iterations is how many rounds of the loop are a millisecond of computing;
	// 0 has it measured.
	Iterations uint64
}

// The bounds of a plan.
const (
	maxRate     = 1e8
	maxTime     = time.Hour
	maxWorkers  = 1_000_000
	maxQueue    = 1 << 24
	maxBytes    = 1 << 30
	minMemory   = 16 << 20
	maxMemory   = 1 << 50
	maxIterate  = 1 << 40
	defaultWork = Published
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
func (p *Plan) AddFlags(f Flags, sides Sides) {
	f.StringVar(&p.Pool, "pool", "", "offer jobs to this `POOL`: "+sides.names())
	f.StringVar(&p.Work, "work", defaultWork, "offer jobs of this `SHAPE`: "+strings.Join(Shapes(), ", "))
	f.Float64Var(&p.Rate, "rate", 0, "offer as many jobs a second; 0 is a closed loop")
	f.IntVar(&p.Inflight, "inflight", 0, "with a closed loop, have as many jobs in flight (default: as --workers)")
	f.DurationVar(&p.Warmup, "warmup", 0, "offer jobs for this long before, which are not counted")
	f.DurationVar(&p.Duration, "duration", 10*time.Second, "offer jobs for this long")
	f.DurationVar(&p.Drain, "drain", 5*time.Second, "wait for the last jobs for this long")
	f.DurationVar(&p.Deadline, "deadline", time.Second, "a job is good that has ended this long after its submission")
	f.IntVar(&p.Workers, "workers", 5000, "bound a pool's workers")
	f.IntVar(&p.Queue, "queue", 100_000, "bound a pool's queue")
	f.Int64Var(&p.Memory, "memory", 0, "stay below as many `BYTES`; 0 is no limit")
	f.StringVar(&p.Off, "off", "", "switch off these `RULES` of our pool: "+strings.Join(ruleNames(), ", "))
	f.Uint64Var(&p.Seed, "seed", 1, "decides the order of jobs that differ")
	f.DurationVar(&p.Wait, "wait", -1, "have a job wait for this long (less than 0: as the shape says)")
	f.DurationVar(&p.CPU, "cpu", -1, "have a job compute for this long (less than 0: as the shape says)")
	f.IntVar(&p.Bytes, "bytes", -1, "have a job hold as many bytes (less than 0: as the shape says)")
	f.Uint64Var(&p.Iterations, "iterations", 0, "take as many rounds of the loop as a millisecond of computing; 0 has it measured")
}

// PlanError is an error of a plan: what was wrong, and what was expected.
type PlanError struct{ text string }

func (e PlanError) Error() string { return e.text }

func wrong(format string, args ...any) error { return PlanError{fmt.Sprintf(format, args...)} }

// Check says what is wrong with a plan, with a PlanError.
func (p *Plan) Check(sides Sides) error {
	if sides[p.Pool] == nil {
		return wrong("--pool is %q; expected one of %s", p.Pool, sides.names())
	}
	if !slices.Contains(Shapes(), p.Work) {
		return wrong("--work is %q; expected one of %s", p.Work, strings.Join(Shapes(), ", "))
	}
	if _, err := p.rules(); err != nil {
		return err
	}
	switch {
	case !(p.Rate >= 0 && p.Rate <= maxRate): // also not a number
		return wrong("--rate is %v; expected 0 (a closed loop) to %.0f", p.Rate, maxRate)
	case p.Inflight < 0 || p.Inflight > maxWorkers:
		return wrong("--inflight is %d; expected 0 (as --workers) to %d", p.Inflight, maxWorkers)
	case p.Inflight > 0 && p.Rate > 0:
		return wrong("--inflight is %d with a --rate of %v; expected no --inflight, or a --rate of 0", p.Inflight, p.Rate)
	case p.Warmup < 0 || p.Warmup > maxTime:
		return wrong("--warmup is %v; expected 0s to %v", p.Warmup, maxTime)
	case p.Duration < time.Millisecond || p.Duration > maxTime:
		return wrong("--duration is %v; expected 1ms to %v", p.Duration, maxTime)
	case p.Rate > 0 && p.Rate*p.Duration.Seconds() < 1:
		return wrong("--rate is %v with a --duration of %v; expected at least one job", p.Rate, p.Duration)
	case p.Drain < 0 || p.Drain > maxTime:
		return wrong("--drain is %v; expected 0s to %v", p.Drain, maxTime)
	case p.Deadline <= 0 || p.Deadline > maxTime:
		return wrong("--deadline is %v; expected more than 0s, up to %v", p.Deadline, maxTime)
	case p.Workers < 1 || p.Workers > maxWorkers:
		return wrong("--workers is %d; expected 1 to %d", p.Workers, maxWorkers)
	case p.Queue < 0 || p.Queue > maxQueue:
		return wrong("--queue is %d; expected 0 (none) to %d", p.Queue, maxQueue)
	case p.Memory != 0 && (p.Memory < minMemory || p.Memory > maxMemory):
		return wrong("--memory is %d; expected 0 (no limit), or %d to %d", p.Memory, minMemory, int64(maxMemory))
	case p.Iterations > maxIterate:
		return wrong("--iterations is %d; expected 0 (measured) to %d", p.Iterations, uint64(maxIterate))
	}
	return p.checkWork()
}

// checkWork checks what a job is to do.
func (p *Plan) checkWork() error {
	switch {
	case p.Work == Mixed && (p.Wait >= 0 || p.CPU >= 0 || p.Bytes >= 0):
		return wrong("--wait, --cpu or --bytes with --work %s; expected none of them, its jobs differ", Mixed)
	case p.Wait > maxTime:
		return wrong("--wait is %v; expected up to %v", p.Wait, maxTime)
	case p.CPU > maxTime:
		return wrong("--cpu is %v; expected up to %v", p.CPU, maxTime)
	case p.Bytes > maxBytes:
		return wrong("--bytes is %d; expected up to %d", p.Bytes, maxBytes)
	}
	return nil
}

// jobs is how many jobs are due in all.
func (p *Plan) jobs() uint64 { return p.due(p.Warmup + p.Duration) }

// due is how many jobs are due before a time after the start: job i is due i/Rate
// after it. What is off by less than a millionth of a job is an error of rounding.
func (p *Plan) due(after time.Duration) uint64 {
	return uint64(max(0, math.Ceil(p.Rate*after.Seconds()-1e-6)))
}

// inflight is how many jobs a closed loop has in flight.
func (p *Plan) inflight() int {
	if p.Inflight == 0 {
		return p.Workers
	}
	return p.Inflight
}

// The rules of our pool by name.
var rules = map[string]pool.Rules{
	"adapting": pool.Adapting,
	"shedding": pool.Shedding,
	"newest":   pool.NewestFirst,
}

func ruleNames() []string { return slices.Sorted(maps.Keys(rules)) }

// rules is what Off says.
func (p *Plan) rules() (off pool.Rules, err error) {
	if p.Off == "" {
		return 0, nil
	}
	for name := range strings.SplitSeq(p.Off, ",") {
		rule, ok := rules[name]
		if !ok {
			return 0, wrong("--off has %q; expected some of %s, separated by commas", name, strings.Join(ruleNames(), ", "))
		}
		off |= rule
	}
	return off, nil
}
