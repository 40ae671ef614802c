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

// answer is what the report of a scenario begins with: a sentence and a picture.
type answer struct {
	clauses []string
	subject string // of the last clause
	// oneRound says that a figure is of one round, and doubts whose runs are marked.
	oneRound bool
	doubts   []string
	picture  *page.Bars
}

// answerOf fills the clauses of a scenario's answer in, but for those with a figure that is
// missing.
func answerOf(r *result.Report) (a answer) {
	for _, c := range r.Scenario.Answer {
		a.clause(r, c)
	}
	return a
}

// String is the sentence, "" where nothing was measured.
func (a *answer) String() string {
	if len(a.clauses) == 0 {
		return ""
	}
	text := strings.Join(a.clauses, "; ") + "."
	if a.oneRound {
		text += " One round."
	}
	if len(a.doubts) > 0 {
		text += " Not certain: " + strings.Join(a.doubts, "; ") + "."
	}
	return text
}

// ofBaseline is in the text of a clause that compares.
var ofBaseline = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\{(base|baseline|ratio|inverse)\}`) })

// clause adds a clause, and the picture of the first.
func (a *answer) clause(r *result.Report, c scenario.Clause) {
	f, ok := probe.Named(c.Figure)
	if !ok {
		return
	}
	rows := rowsOf(r, c.Workload)
	baseline := cmp.Or(c.Baseline, r.Scenario.Baseline)
	compares := ofBaseline().MatchString(c.Text)
	subject := cmp.Or(c.Subject, a.subject)
	base, x := rowNamed(rows, baseline), rowNamed(rows, subject)
	switch {
	case subject != "":
	case compares:
		x = best(rows, f, baseline, r.Scenario.Baseline)
	default:
		x = best(rows, f)
	}
	v, ok := x.median(f.Name)
	if !ok {
		return
	}
	b, known := base.median(f.Name)
	ratios := x.ratios(base, f.Name)
	ratio, hasRatio := stats.Median(ratios)
	if strings.Contains(c.Text, "{base") && !known || strings.Contains(c.Text, "{ratio}") && !hasRatio || strings.Contains(c.Text, "{inverse}") && (!hasRatio || ratio == 0) {
		return
	}
	a.subject = x.subject
	a.doubt(x, f.Name)
	if compares {
		a.doubt(base, f.Name)
		if margin, ok := stats.MedianMargin(ratios); ok && margin >= math.Abs(ratio-1) {
			c.Text += " (within the spread)"
		}
	}
	inverse := 0.0
	if ratio > 0 {
		inverse = 1 / ratio
	}
	a.clauses = append(a.clauses, strings.NewReplacer("{subject}", x.subject, "{baseline}", baseline, "{value}", f.Text(v), "{base}", f.Text(b),
		"{ratio}", format.Number(ratio), "{inverse}", format.Number(inverse)).Replace(c.Text))
	if a.picture == nil {
		a.picture = picture(rows, f, c.Workload, r.Scenario.Baseline)
	}
}

// doubt looks for what makes the figures of a row less certain.
func (a *answer) doubt(x row, figure string) {
	a.oneRound = a.oneRound || len(x.byRound(figure)) < 2
	if text, _ := x.doubts(); text != "" && !slices.Contains(a.doubts, text) {
		a.doubts = append(a.doubts, text)
	}
}

// picture is a figure of each subject.
func picture(rows []row, f probe.Figure, workload, baseline string) *page.Bars {
	b := &page.Bars{Title: f.Heading + ", " + workload, Unit: f.Unit}
	winner := best(rows, f, baseline).subject
	for _, x := range rows {
		if v, ok := x.median(f.Name); ok && !stats.IsNeverLatency(v) {
			tone := page.Plain
			if x.subject == winner {
				tone = page.Good
			}
			b.Add(x.subject, v, f.Text(v), tone)
		}
	}
	return b
}
