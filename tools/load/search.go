package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/tools/internal/pacer"
)

// Goal describes a search for the highest rate at which a percentile of the latency stays under a limit. The rate is
// the number of messages per second on all connections together. Result.Search contains the outcome.
//
// Each rate is tried for Config.Duration. The first fifth of this time is a warm-up. The default duration is 2 s or 10
// times Under, whichever is longer.
type Goal struct {
	// Percentile is the percentile of the latency that is compared with Under. It must be above 0 and below 100. The
	// default is 99.
	Percentile float64
	// Under is the upper limit for the percentile of the latency. If Under is 0, there is no goal.
	Under time.Duration
}

// Step is the outcome of one rate in a search.
type Step struct {
	// Rate is the planned rate and Answered the rate of answers, in messages per second on all connections.
	Rate     float64 `json:"rate"`
	Answered float64 `json:"answered"`
	// Latency and Late are the goal's percentiles of the latency and of the generator's own delay.
	Latency time.Duration `json:"latency"`
	Late    time.Duration `json:"late"`
	// Unsent counts messages that were never sent or never answered.
	Unsent int64 `json:"unsent"`
	// Kept reports whether the rate met the goal: the percentile of the latency is within the limit, and the share of
	// answered messages reaches the percentile, such as 99 % for p99. Of n messages planned for the window, 99 % or
	// n-3√n, whichever is less, must be answered in the window. A connection must still be open.
	Kept bool `json:"kept"`
	// Limited reports that the rate missed the goal, but that the generator itself was late by at least half of the
	// latency limit. Such a rate is tried once more, as a separate step. If the second try also fails, the rate
	// counts as failed.
	Limited bool `json:"limited,omitempty"`

	open int64 // remaining connections
}

// Found is the outcome of a search. It is part of a Result, which describes the step with the highest rate that met the
// goal. If no rate met the goal, the Result describes the first step. In both cases, the fields ConnectErrors, Lost,
// Mismatched, FirstMismatch, BadStatus and Limits of the Result cover the whole search.
type Found struct {
	Goal Goal `json:"goal"`
	// Rate is the highest rate that kept the goal, in messages per second on all connections together, or 0 if no rate
	// kept it. Unless the search ended early, a rate at most 5 % higher failed. Most reports that the search ended
	// because a higher rate would exceed MaxRate.
	Rate  float64 `json:"rate"`
	Most  bool    `json:"most,omitempty"`
	Steps []Step  `json:"steps"`
}

const (
	firstRate     = 1000
	rateGrowth    = 4
	rateTolerance = 1.05
	maxSteps      = 40
	minStepGoals  = 10
)

func (c Config) validateSearchSettings() error {
	goal, step := c.goalWithDefaults(), c.searchStepDuration()
	switch {
	case !(goal.Percentile > 0 && goal.Percentile < 100):
		return fmt.Errorf("load: goal percentile is %v; expected more than 0 and less than 100", goal.Percentile)
	case goal.Under < 0 || goal.Under > maxLatency:
		return fmt.Errorf("load: latency goal is %v; expected more than 0 and at most %v", goal.Under, maxLatency)
	case step < 100*time.Millisecond || step > maxDuration:
		return fmt.Errorf("load: --duration is %v for each rate of a search; expected 100ms to %v", step, maxDuration)
	case step < minStepGoals*goal.Under:
		return fmt.Errorf("load: --duration is %v for each rate of a search with a latency goal of %v; expected %v or more, to detect a growing queue", step, goal.Under, minStepGoals*goal.Under)
	case c.Early || c.Ramp.Over > 0 || c.Lifetime > 0 || c.Warmup > 0:
		return errors.New("load: --warmup, --early, --ramp or --lifetime is given with a search for a rate; expected none of them")
	case c.Rate.PerSecond != 0 || c.Rate.To != 0:
		return errors.New("load: a rate is given with a search for a rate; expected one of the two")
	case c.awaitsNoAnswers():
		return errors.New("load: a search for a rate requires answers; expected neither --flood nor --match none")
	}
	return nil
}

func (c *Config) goalWithDefaults() Goal {
	g := c.Rate.Goal
	setIfZero(&g.Percentile, 99)
	return g
}

func (c *Config) searchStepDuration() time.Duration {
	return cmp.Or(c.Duration, max(2*time.Second, minStepGoals*c.Rate.Goal.Under))
}

func (c Config) withFirstStepRateAndDuration() Config {
	c.Warmup = c.searchStepDuration() / 5
	c.Duration = c.searchStepDuration() - c.Warmup
	c.Rate.Each, c.Rate.PerSecond = false, firstRate
	c.Rate.Goal = Goal{}
	return c
}

// searchOrTryReceivedRates searches for the highest rate that meets the goal. If cfg.Begin is set, it does not search,
// but tries only the rates that it receives from cfg.Begin. The same connections are used for all rates.
func searchOrTryReceivedRates(ctx context.Context, cfg Config) (*Result, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s, asked := NewSearch(cfg), cfg
	cfg = cfg.withFirstStepRateAndDuration()
	conclude := func(end *Result) *Result {
		if asked.Begin == nil {
			end = s.BestStepOrWholeRunResult(end)
		}
		if !asked.Histograms {
			end.Histograms = nil
		}
		return end
	}
	if observe := cfg.Observe; observe != nil {
		cfg.Observe = func(e Event) {
			if e.Phase == Done {
				e.Result = conclude(e.Result)
			}
			observe(e)
		}
	}
	r, err := validateAndStartEngine(ctx, cfg)
	if err != nil {
		return nil, err
	}
	end, err := r.runPhasesStopAndBuildResult(ctx, func(ctx context.Context) error {
		if err := r.runConnectPhase(ctx); err != nil {
			return err
		}
		r.emitEventWithSnapshot(Event{Phase: Connected})
		switch {
		case r.sumTotals().openConns() == 0:
			return nil
		case cfg.Begin != nil:
			return r.measureRatesFromChannel(ctx)
		}
		return s.Seek(func(rate float64) (*Result, int64, error) { return r.measureAtRate(ctx, rate) },
			func(step Step) { r.emitEventWithSnapshot(Event{Phase: Tried, Step: &step}) })
	})
	return conclude(end), err
}

func (r *loadRun) measureAtRate(ctx context.Context, rate float64) (_ *Result, openConns int64, _ error) {
	r.cfg.Rate.PerSecond = rate
	r.resetWindowMeasurements()
	if err := r.runWarmupWindowAndDrain(ctx); err != nil {
		return nil, 0, err
	}
	s := r.sumTotals()
	result := r.buildResult(s)
	result.Histograms = r.encodeHistogramsExceptLatency()
	return result, s.openConns(), nil
}

func (r *loadRun) measureRatesFromChannel(ctx context.Context) error {
	for {
		rate := 0.0
		r.stage = "hold"
		if err := r.waitEmittingProgress(ctx, waitCondition{values: r.cfg.Begin, value: &rate, done: r.allConnsClosedForGood}); err != nil || rate <= 0 {
			return err
		}
		result, _, err := r.measureAtRate(ctx, min(rate, MaxRate))
		if err != nil {
			return err
		}
		r.emitEventWithSnapshot(Event{Phase: Tried, Step: &Step{Rate: rate, Answered: result.Rate()}, Result: result})
	}
}

// Search finds the highest rate that meets a goal. If the first rate meets the goal, Search multiplies the rate by 4
// until a rate fails. Otherwise, Search divides the rate by 4 until a rate meets the goal. It then narrows the range
// between the two rates to 5 %. A Search is not safe for concurrent use.
type Search struct {
	found     *Found
	window    time.Duration // duration of a step without warm-up
	best      *Result
	limits    []Limit // limits that the generator reached in steps
	low, high float64 // highest rate that kept the goal, lowest that failed; 0 if unknown
}

// NewSearch returns a search for cfg.Rate.Goal.
func NewSearch(cfg Config) *Search {
	return &Search{found: &Found{Goal: cfg.goalWithDefaults()}, window: cfg.withFirstStepRateAndDuration().Duration}
}

// Seek runs the search. For each rate, Seek first calls runStep. The rate is in messages per second on all connections
// together. runStep must return a Result with Histograms, and the number of connections that are still open. Seek then
// calls onStepDone with the outcome. If runStep returns an error, Seek ends and returns this error.
func (s *Search) Seek(runStep func(rate float64) (r *Result, open int64, err error), onStepDone func(Step)) error {
	return s.tryRatesUntilDone(func(rate float64) (Step, *Result, error) {
		result, open, err := runStep(rate)
		if err != nil {
			return Step{}, nil, err
		}
		step := Step{Rate: rate, open: open}
		for _, of := range []struct {
			to   *time.Duration
			text string
		}{{&step.Latency, result.Histogram}, {&step.Late, result.Histograms["late"]}} {
			h, err := decodeHistogramOrNil(of.text)
			if err != nil {
				return Step{}, nil, err
			}
			if h != nil {
				*of.to = time.Duration(h.ValueAtPercentile(s.found.Goal.Percentile))
			}
		}
		step = s.found.Goal.evaluateStepFromResult(result, step)
		onStepDone(step)
		return step, result, nil
	})
}

func (s *Search) tryRatesUntilDone(try func(rate float64) (Step, *Result, error)) error {
	rate, again := float64(firstRate), false
	for range maxSteps {
		step, result, err := try(rate)
		if err != nil {
			return err
		}
		s.found.Steps = append(s.found.Steps, step)
		if again = step.Limited && !again; again {
			continue
		}
		if s.updateBoundsBestAndLimits(step, result); step.open == 0 {
			return nil
		}
		if rate = s.nextRateOrZero(); rate == 0 {
			return nil
		}
	}
	return nil
}

func (s *Search) nextRateOrZero() float64 {
	switch {
	case s.high == 0:
		if s.low*rateGrowth > MaxRate {
			s.found.Most = true
			return 0
		}
		return s.low * rateGrowth
	case s.low == 0:
		if s.high/rateGrowth*s.window.Seconds() < minStepMessages {
			return 0
		}
		return s.high / rateGrowth
	case s.high/s.low <= rateTolerance:
		return 0
	}
	return math.Sqrt(s.low * s.high)
}

// minStepMessages is the minimum number of messages for a meaningful percentile.
const minStepMessages = 20

func (g Goal) evaluateStepFromResult(r *Result, step Step) (completed Step) {
	planned := float64(r.Intended)
	step.Answered = r.Rate()
	step.Unsent = r.Intended - r.Latency.Count
	step.Kept = step.open > 0 && r.Latency.Count > 0 && step.Latency <= g.Under &&
		float64(step.Unsent) <= planned*(1-g.Percentile/100) &&
		float64(r.Answered) >= planned-max(planned/100, 3*math.Sqrt(planned))
	step.Limited = !step.Kept && step.open > 0 && step.Late >= g.Under/2
	return step
}

func (s *Search) updateBoundsBestAndLimits(step Step, result *Result) {
	for _, l := range result.Limits {
		if l.Wall == wallCPU || l.Wall == wallLate {
			l.Evidence += fmt.Sprintf(", at %s/s", format.Count(int64(step.Rate)))
		}
		s.addLimitUnlessKnown(l)
	}
	if s.best == nil {
		s.best = result
	}
	if !step.Kept {
		s.high = step.Rate
		return
	}
	s.low, s.found.Rate, s.best = step.Rate, step.Rate, result
}

// Values of Limit.Wall for the limits whose evidence depends on the rate that a search has tried.
const (
	wallCPU  = "cpu"
	wallLate = "late sends"
)

func (s *Search) addLimitUnlessKnown(l Limit) {
	if !slices.ContainsFunc(s.limits, func(met Limit) bool { return met.Wall == l.Wall }) {
		s.limits = append(s.limits, l)
	}
}

// BestStepOrWholeRunResult returns the Result of the best step, with two additions: the outcome of the search, and the
// failures of the whole run from wholeRunResult. If no step has ended, it returns wholeRunResult with the outcome of
// the search.
func (s *Search) BestStepOrWholeRunResult(wholeRunResult *Result) *Result {
	if s.best == nil {
		wholeRunResult.Search = s.found
		return wholeRunResult
	}
	r := *s.best
	r.Search = s.found
	r.Start, r.Took, r.Interrupted = wholeRunResult.Start, wholeRunResult.Took, wholeRunResult.Interrupted
	r.ConnectErrors, r.Lost, r.BadStatus = wholeRunResult.ConnectErrors, wholeRunResult.Lost, wholeRunResult.BadStatus
	r.Mismatched, r.FirstMismatch = wholeRunResult.Mismatched, wholeRunResult.FirstMismatch
	severity := []string{"descriptors", "ports", "memory", "conntrack", "backlog", "socket memory", wallCPU, wallLate, "cpu pressure"}
	r.Limits = slices.Clone(s.limits)
	slices.SortStableFunc(r.Limits, func(a, b Limit) int {
		return slices.Index(severity, a.Wall) - slices.Index(severity, b.Wall)
	})
	return &r
}

func (r *loadRun) resetWindowMeasurements() {
	planned, _ := r.estimatePlannedAndUntaken(r.sumTotals(), r.generator.now())
	r.aggregator.lastCounts[nIntended] -= planned
	r.generator.setMeasuringWindow(pacer.Never, math.MinInt64)
	r.skipped = pacer.CountsBeforeAndInWindow{}
	for _, s := range r.generator.shards {
		s.mu.Lock()
		s.totals.window, s.totals.run[nPlanned], s.totals.run[nEarly], s.totals.run[nUnsent] = counts{}, 0, 0, 0
		s.mu.Unlock()
	}
	r.aggregator.collectShardTimes(r.generator.shards)
	for _, h := range r.aggregator.total.all() {
		if h != &r.aggregator.total.connect && h != &r.aggregator.total.firstByte {
			h.reset()
		}
	}
}
