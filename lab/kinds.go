package lab

import (
	"context"
	"strings"
	"time"

	"github.com/myriad-go/myriad/internal/page"
)

// rules are what a kind of workload has of its own. A kind that is not in the list below
// is one of those that a server of the scenario is measured under while the load
// generator's stream is read: measurement.go. Any of these may be nil.
type rules struct {
	// check returns a ScenarioError when the workload can't be applied.
	check func(w Workload) error
	// estimate is how long one run takes, starting and stopping included.
	estimate func(w Workload) time.Duration
	// bound is how long one run may take before it is ended as failed.
	bound func(w Workload) time.Duration
	// run makes one run and puts what it saw into the record, its marks but RuleNoise too; nil for a
	// kind that only has the rest of its own. It has ended all processes when it
	// returns.
	run func(ctx context.Context, r *runner, s step, rec *RunRecord) error
	// judge works out the figures and the marks of a run that did not fail; inRun where
	// run has done so.
	judge func(rec *RunRecord, w Workload)
	// partial has a run that was interrupted stay in the report, for what it had seen.
	partial bool
	// parts is what the report says of a workload: tables, charts, verdicts.
	parts func(r *Report, rows []row, w Workload) []page.Part
	// verdict is what the report says of all workloads of the kind together, at its
	// end.
	verdict func(r *Report) []page.Part
}

// inRun is the judge of a kind whose runs are judged by run, as those that fail have
// findings, too.
func inRun(*RunRecord, Workload) {}

// kinds are the kinds with rules of their own. They are set by init, as the rules look at
// them in turn.
var kinds map[Kind]rules

func init() {
	kinds = map[Kind]rules{
		Flood:    floodRules,
		Offering: offeringRules,
		Holding:  holdingRules,
		Soaking:  soakingRules,
	}
}

// verdicts are those of the kinds that the report has.
func (r *Report) verdicts() (parts []page.Part) {
	done := make(map[Kind]bool)
	for _, w := range r.Scenario.Workloads {
		if of := kinds[w.Kind].verdict; of != nil && !done[w.Kind] {
			done[w.Kind] = true
			parts = append(parts, of(r)...)
		}
	}
	return parts
}

// failure says why the run failed, in a line, "" where it did not.
func (r *RunRecord) failure() string {
	if r.Error != "" {
		text, _, _ := strings.Cut(r.Error, "\n")
		return text
	}
	if !r.failed() {
		return ""
	}
	var missed []string
	for _, f := range r.Million.Findings {
		if f.Outcome == NotMet || f.Outcome != Met && !f.Strict {
			missed = append(missed, f.String())
		}
	}
	return strings.Join(missed, "; ")
}

// failed says whether the run did not come to its end, or missed what was asked of it.
func (r *RunRecord) failed() bool {
	return r.Error != "" || r.Million != nil && r.Million.Missed
}
