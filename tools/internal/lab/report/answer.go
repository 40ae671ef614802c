package report

import (
	"cmp"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/tools/internal/lab/probe"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
	"github.com/myriad-go/myriad/tools/internal/lab/stats"
)

// answerText is the result of a scenario, as one sentence and a chart. A report begins with this sentence.
type answerText struct {
	clauses []string
	subject string // subject of the last clause
	// oneRound reports that a figure comes from only one round. uncertain contains a text for each subject whose runs
	// broke one of probe.UncertainRules.
	oneRound  bool
	uncertain []string
	chart     *page.Bars
}

func buildAnswerText(r *result.Report) (a answerText) {
	for _, c := range r.Scenario.Answer {
		a.addClauseIfMeasured(r, c)
	}
	return a
}

// String returns the sentence of the answer, or "" if nothing was measured.
func (a *answerText) String() string {
	if len(a.clauses) == 0 {
		return ""
	}
	text := strings.Join(a.clauses, "; ") + "."
	if a.oneRound {
		text += " One round."
	}
	if len(a.uncertain) > 0 {
		text += " Not certain: " + strings.Join(a.uncertain, "; ") + "."
	}
	return text
}

// baselinePlaceholder returns a pattern that matches the placeholders whose values depend on the baseline, such as
// {ratio}.
var baselinePlaceholder = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\{(base|baseline|ratio|inverse)\}`) })

// addClauseIfMeasured adds a clause to the answer if all figures in the clause were measured. The first clause that is
// added also determines the chart.
func (a *answerText) addClauseIfMeasured(r *result.Report, c scenario.Clause) {
	f, ok := probe.FindFigure(c.Figure)
	if !ok {
		return
	}
	rows := groupRunsBySubject(r, c.Workload)
	baseline := cmp.Or(c.Baseline, r.Scenario.Baseline)
	compares := baselinePlaceholder().MatchString(c.Text)
	subject := cmp.Or(c.Subject, a.subject)
	base, x := findSubjectRuns(rows, baseline), findSubjectRuns(rows, subject)
	switch {
	case subject != "":
	case compares:
		x = bestSubjectByFigure(rows, f, baseline, r.Scenario.Baseline)
	default:
		x = bestSubjectByFigure(rows, f)
	}
	v, ok := x.medianOfFigure(f.Name)
	if !ok {
		return
	}
	b, known := base.medianOfFigure(f.Name)
	ratios := x.ratiosPerRoundTo(base, f.Name)
	ratio, hasRatio := stats.Median(ratios)
	if strings.Contains(c.Text, "{base") && !known || strings.Contains(c.Text, "{ratio}") && !hasRatio || strings.Contains(c.Text, "{inverse}") && (!hasRatio || ratio == 0) {
		return
	}
	a.subject = x.subject
	a.noteOneRoundAndRuleBreaks(x, f.Name)
	if compares {
		a.noteOneRoundAndRuleBreaks(base, f.Name)
		if margin, ok := stats.MedianConfidenceMargin(ratios); ok && margin >= math.Abs(ratio-1) {
			c.Text += " (within the spread)"
		}
	}
	inverse := 0.0
	if ratio > 0 {
		inverse = 1 / ratio
	}
	a.clauses = append(a.clauses, strings.NewReplacer("{subject}", x.subject, "{baseline}", baseline, "{value}", f.Format(v), "{base}", f.Format(b),
		"{ratio}", format.Rounded(ratio), "{inverse}", format.Rounded(inverse)).Replace(c.Text))
	if a.chart == nil {
		a.chart = newBarChartHighlightingBest(rows, f, c.Workload, r.Scenario.Baseline)
	}
}

func (a *answerText) noteOneRoundAndRuleBreaks(x subjectRuns, figure string) {
	a.oneRound = a.oneRound || len(x.valuesByRound(figure)) < 2
	if text, _ := x.describeRuleBreaks(); text != "" && !slices.Contains(a.uncertain, text) {
		a.uncertain = append(a.uncertain, text)
	}
}

func newBarChartHighlightingBest(rows []subjectRuns, f probe.Figure, workload, excludedFromBest string) *page.Bars {
	b := &page.Bars{Title: f.Heading + ", " + workload, Unit: f.Unit}
	winner := bestSubjectByFigure(rows, f, excludedFromBest).subject
	for _, x := range rows {
		if v, ok := x.medianOfFigure(f.Name); ok && !stats.IsNeverLatency(v) {
			tone := page.Plain
			if x.subject == winner {
				tone = page.Good
			}
			b.Add(x.subject, v, f.Format(v), tone)
		}
	}
	return b
}
