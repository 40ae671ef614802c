package report

import (
	"fmt"
	"slices"

	"github.com/myriad-go/myriad/tools/internal/lab/probe"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
)

// SetVerdicts sets the verdicts of all reports in s. There are verdicts on comparisons with published results and
// verdicts on claims.
func SetVerdicts(s *result.Set) {
	for _, r := range s.Reports {
		r.Verdicts = nil
		for i := range r.Scenario.References {
			r.Verdicts = append(r.Verdicts, newPublishedComparisonTable(r, &r.Scenario.References[i]).listVerdicts()...)
		}
		for _, claim := range r.Scenario.Claims {
			r.Verdicts = append(r.Verdicts, verdictsOfClaim(r, claim, s.Strict)...)
		}
	}
}

// verdictsOfClaim returns a verdict for each pair of subject and workload to which the claim applies. If
// failStrictClaims is true, the verdicts of claims that only the strict mode requires are marked as required, too.
func verdictsOfClaim(r *result.Report, c scenario.Claim, failStrictClaims bool) (all []result.Verdict) {
	f, ok := probe.FindFigure(c.Figure)
	if !ok {
		return nil
	}
	for _, w := range r.Scenario.Workloads {
		if c.Workload != "" && w.Name != c.Workload {
			continue
		}
		for _, x := range groupRunsBySubject(r, w.Name) {
			if len(c.Subjects) > 0 && !slices.Contains(c.Subjects, x.subject) {
				continue
			}
			outcome, reason := checkClaimForSubject(r, c, f, w, x)
			if text, most := x.describeRuleBreaks(); most && outcome != result.NotMeasured {
				reason += "; not certain: " + text
				if c.Fails == "" { // required claims remain required
					outcome = result.Uncertain
				}
			}
			required := c.Fails == scenario.UnlessMet || c.Fails == scenario.IfNotMet || c.Fails == scenario.IfStrict && failStrictClaims
			all = append(all, result.Verdict{
				Of: c.Text, Outcome: outcome, Text: fmt.Sprintf("%s/%s: %s", w.Name, x.subject, reason),
				Failed: outcome == result.NotMet && required || outcome == result.NotMeasured && c.Fails == scenario.UnlessMet,
			})
		}
	}
	return all
}

// checkClaimForSubject checks whether a subject meets a claim. figureOrReason contains the subject's figure and the
// limit, or the reason why the claim could not be checked.
func checkClaimForSubject(r *result.Report, c scenario.Claim, f probe.Figure, w scenario.Workload, x subjectRuns) (outcome, figureOrReason string) {
	if failed := x.describeFailures(); failed != "" {
		return result.NotMeasured, failed
	}
	v, ok := x.medianOfFigure(f.Name)
	if !ok {
		return result.NotMeasured, x.whyFigureIsMissing(f)
	}
	n := plannedConnsOfSubject(r, w, x.subject)
	if ran := x.runs[0].Connections; ran > 0 {
		n = min(n, ran)
	}
	if n < c.From {
		return result.NotMeasured, fmt.Sprintf("%s, of too few connections to tell", f.Format(v))
	}
	base, unit := 1.0, ""
	if c.Of != "" {
		of := findSubjectRuns(groupRunsBySubject(r, c.Of), x.subject)
		if failed := of.describeFailures(); failed != "" {
			return result.NotMeasured, c.Of + ": " + failed
		}
		if base, ok = of.medianOfFigure(f.Name); !ok || meansNothingWasDone(f, base) {
			return result.NotMeasured, c.Of + " has no such figure"
		}
		unit = fmt.Sprintf(" (%s under %s)", f.Format(base), c.Of)
	}
	var bound float64
	var met bool
	word := "at most"
	if c.AtMost != nil {
		bound = *c.AtMost*base + c.Plus
		met = v <= bound
	} else {
		bound, word = *c.AtLeast*base+c.Plus, "at least"
		met = v >= bound
	}
	outcome = result.NotMet
	if met {
		outcome = result.Met
	}
	return outcome, fmt.Sprintf("%s %s; %s %s%s", f.Heading, f.Format(v), word, f.Format(bound), unit)
}
