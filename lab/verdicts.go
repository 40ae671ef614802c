package lab

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
	for _, f := range r.judgeOverload() {
		all = append(all, Verdict{f.Claim, f.Outcome, f.Detail})
	}
	return all
}
