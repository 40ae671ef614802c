package lab

import (
	"slices"
	"strings"
)

// Verdict is what follows from the runs of a report: how one of ours stands beside a
// published design by a figure, or whether a claim was met.
type Verdict struct {
	// Of is the title of the published table, or the claim.
	Of string `json:"of"`
	// Outcome is "ahead", "level", "behind" or NotMeasured beside a published table; of
	// a claim it is Met, NotMet or NotMeasured, and "" where nothing was claimed.
	Outcome string `json:"outcome,omitempty"`
	// Text says it in a sentence.
	Text string `json:"text"`
}

// judged are the verdicts of a report, those beside its published tables first.
func (r *Report) judged() (all []Verdict) {
	for i := range r.Scenario.Published {
		p := &r.Scenario.Published[i]
		rows, missing := r.standings(p)
		for _, row := range rows {
			for _, s := range row {
				all = append(all, Verdict{p.Title, s.outcome(), s.String()})
			}
		}
		for _, m := range missing {
			all = append(all, Verdict{p.Title, notCompared, m.Text})
		}
	}
	for _, f := range r.findings() {
		words := slices.DeleteFunc([]string{f.run, f.Detail}, func(word string) bool { return word == "" })
		all = append(all, Verdict{f.Claim, f.Outcome, strings.Join(words, ": ")})
	}
	return all
}

// foundIn is a finding of a run, named as workload/subject, or of all runs together, "".
type foundIn struct {
	run string
	Finding
}

// findings are those of all runs together, and those of each run that counts.
func (r *Report) findings() (all []foundIn) {
	for _, f := range r.judgeOverload() {
		all = append(all, foundIn{"", f})
	}
	for i := range r.Runs {
		run := &r.Runs[i]
		if run.Million == nil || run.Superseded {
			continue
		}
		for _, f := range run.Million.Findings {
			all = append(all, foundIn{run.Workload + "/" + run.Subject, f.Finding})
		}
	}
	return all
}

// notMet are those that were not met, in a sentence each.
func (r *Report) notMet() (all []string) {
	for _, f := range r.findings() {
		if f.Outcome != NotMet {
			continue
		}
		of := r.Scenario.Name
		if f.run != "" {
			of += "/" + f.run
		}
		if text := of + ": " + f.String(); !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return all
}
