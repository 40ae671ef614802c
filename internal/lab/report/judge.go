package report

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/internal/lab/probe"
	"github.com/myriad-go/myriad/internal/lab/result"
	"github.com/myriad-go/myriad/internal/lab/scenario"
)

// Judge works out the verdicts of a set: how ours stand beside published designs, and whether
// claims are met. Of a set of the version before it leaves those that there are.
func Judge(s *result.Set) {
	for _, r := range s.Reports {
		r.Verdicts = nil
		for i := range r.Scenario.Published {
			c := compare(r, &r.Scenario.Published[i])
			for _, all := range c.standings {
				for _, x := range all {
					r.Verdicts = append(r.Verdicts, result.Verdict{Of: c.published.Title, Outcome: x.outcome(), Text: x.String()})
				}
			}
			for _, text := range c.missing {
				r.Verdicts = append(r.Verdicts, result.Verdict{Of: c.published.Title, Outcome: result.NotMeasured, Text: text})
			}
		}
		for _, claim := range r.Scenario.Claims {
			r.Verdicts = append(r.Verdicts, judge(r, claim, s.Strict)...)
		}
	}
}

// judge are the verdicts of a claim: one for each subject and workload that it is of.
func judge(r *result.Report, c scenario.Claim, strict bool) (all []result.Verdict) {
	if len(c.Against) > 0 {
		return against(r, c)
	}
	f, ok := probe.Named(c.Figure)
	if !ok {
		return nil
	}
	for _, w := range r.Scenario.Workloads {
		if c.Workload != "" && w.Name != c.Workload {
			continue
		}
		for _, x := range rowsOf(r, w.Name) {
			if len(c.Subjects) > 0 && !slices.Contains(c.Subjects, x.subject) {
				continue
			}
			v := result.Verdict{Of: c.Text}
			var why string
			v.Outcome, why = decide(r, c, f, w, x)
			v.Text = fmt.Sprintf("%s/%s: %s", w.Name, x.subject, why)
			v.Failed = v.Outcome == result.NotMet && (c.Fails == scenario.UnlessMet || c.Fails == scenario.IfNotMet || c.Fails == scenario.IfStrict && strict) ||
				v.Outcome == result.NotMeasured && c.Fails == scenario.UnlessMet
			all = append(all, v)
		}
	}
	return all
}

// decide says whether a row meets a claim, and by which figure.
func decide(r *result.Report, c scenario.Claim, f probe.Figure, w scenario.Workload, x row) (outcome, why string) {
	if failed := x.failed(); failed != "" {
		return result.NotMeasured, failed
	}
	v, ok := x.median(f.Name)
	if !ok {
		return result.NotMeasured, missing(f, x)
	}
	if n := held(r, w, x.subject); n < c.From {
		return result.NotMeasured, fmt.Sprintf("%s, of too few connections to tell", f.Text(v))
	}
	base, unit := 1.0, ""
	if c.Of != "" {
		of := rowNamed(rowsOf(r, c.Of), x.subject)
		if failed := of.failed(); failed != "" {
			return result.NotMeasured, c.Of + ": " + failed
		}
		if base, ok = of.median(f.Name); !ok || nothing(f, base) {
			return result.NotMeasured, c.Of + " has no such figure"
		}
		unit = fmt.Sprintf(" (%s under %s)", f.Text(base), c.Of)
	}
	if c.AtMost != nil {
		bound := *c.AtMost*base + c.Plus
		return met(v <= bound), fmt.Sprintf("%s; at most %s%s", f.Text(v), f.Text(bound), unit)
	}
	bound := *c.AtLeast*base + c.Plus
	return met(v >= bound), fmt.Sprintf("%s; at least %s%s", f.Text(v), f.Text(bound), unit)
}

func met(is bool) string {
	if is {
		return result.Met
	}
	return result.NotMet
}

// ahead is by how much a subject has to be ahead in each figure.
const ahead = 1.01

// against looks for subjects that are ahead of the claim's in all of its figures, under the
// same workload. One that the watchdog has ended is not ahead.
func against(r *result.Report, c scenario.Claim) []result.Verdict {
	v := result.Verdict{Of: c.Text, Outcome: result.NotMeasured}
	var found []string
	for _, w := range r.Scenario.Workloads {
		rows := rowsOf(r, w.Name)
		for _, name := range c.Subjects {
			ours := rowNamed(rows, name)
			for _, other := range rows {
				if len(ours.runs) == 0 || slices.Contains(c.Subjects, other.subject) || strings.HasPrefix(other.subject, name+"-") {
					continue
				}
				v.Outcome = result.Met
				if text, is := aheadInAll(ours, other, c.Against); is {
					found = append(found, w.Name+"/"+other.subject+" ("+text+")")
				}
			}
		}
	}
	if len(found) > 0 {
		v.Outcome, v.Text = result.NotMet, strings.Join(found, "; ")
	}
	return []result.Verdict{v}
}

func aheadInAll(ours, other row, figures []string) (text string, is bool) {
	if failed := ours.failed(); failed != "" {
		return failed, true
	}
	var words []string
	for _, name := range figures {
		f, _ := probe.Named(name)
		us, ok := ours.median(name)
		them, ok2 := other.median(name)
		lead := us > them*ahead
		if f.Better == probe.Higher {
			lead = them > us*ahead
		}
		if !ok || !ok2 || !lead || other.ended() != nil {
			return "", false
		}
		words = append(words, fmt.Sprintf("%s %s against %s", f.Heading, f.Text(them), f.Text(us)))
	}
	return strings.Join(words, ", "), true
}

// Answer is the sentence with which the report of a scenario begins, "" where nothing was
// measured.
func Answer(r *result.Report) string {
	var clauses []string
	for _, c := range r.Scenario.Answer {
		if text := clause(r, c); text != "" {
			clauses = append(clauses, text)
		}
	}
	if len(clauses) == 0 {
		return ""
	}
	return strings.Join(clauses, "; ") + "."
}

// ofBaseline is in the text of a clause that compares.
var ofBaseline = regexp.MustCompile(`\{(base|baseline|ratio|inverse)\}`)

// clause fills a clause in, "" where one of the figures is missing.
func clause(r *result.Report, c scenario.Clause) string {
	f, ok := probe.Named(c.Figure)
	if !ok {
		return ""
	}
	rows := rowsOf(r, c.Workload)
	baseline := c.Baseline
	if baseline == "" {
		baseline = r.Scenario.Baseline
	}
	base, x := rowNamed(rows, baseline), rowNamed(rows, c.Subject)
	switch {
	case c.Subject != "":
	case ofBaseline.MatchString(c.Text):
		x = bestBut(rows, f, baseline, r.Scenario.Baseline)
	default:
		x = bestBut(rows, f)
	}
	v, ok := x.median(f.Name)
	if !ok {
		return ""
	}
	b, known := base.median(f.Name)
	ratio, hasRatio := x.ratio(base, f.Name)
	if strings.Contains(c.Text, "{base") && !known || strings.Contains(c.Text, "{ratio}") && !hasRatio || strings.Contains(c.Text, "{inverse}") && (!hasRatio || ratio == 0) {
		return ""
	}
	inverse := 0.0
	if ratio > 0 {
		inverse = 1 / ratio
	}
	return strings.NewReplacer("{subject}", x.subject, "{baseline}", baseline, "{value}", f.Text(v), "{base}", f.Text(b),
		"{ratio}", format.Number(ratio), "{inverse}", format.Number(inverse)).Replace(c.Text)
}
