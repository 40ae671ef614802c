// Package report formats results as a page, and as Go benchmarks for benchstat. The page begins with the answer to each
// scenario: a sentence and a chart.
package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/tools/internal/lab/probe"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
	"github.com/myriad-go/myriad/tools/internal/lab/stats"
)

type subjectRuns struct {
	subject string
	runs    []*result.Run
}

// groupRunsBySubject groups the runs of a workload by subject, in the scenario's order. It omits subjects without runs.
func groupRunsBySubject(r *result.Report, workload string) (rows []subjectRuns) {
	for _, s := range r.Scenario.Subjects {
		found := subjectRuns{subject: s.Name}
		for i := range r.Runs {
			if run := &r.Runs[i]; run.Workload == workload && run.Subject == s.Name {
				found.runs = append(found.runs, run)
			}
		}
		if len(found.runs) > 0 {
			rows = append(rows, found)
		}
	}
	return rows
}

// findSubjectRuns returns the runs of a subject. If the subject is not among the rows, the result contains no runs.
func findSubjectRuns(rows []subjectRuns, subject string) (withoutRunsIfMissing subjectRuns) {
	i := slices.IndexFunc(rows, func(w subjectRuns) bool { return w.subject == subject })
	if i < 0 {
		return subjectRuns{subject: subject}
	}
	return rows[i]
}

// valuesByRound returns a figure's values in the valid runs. The map's keys are round numbers.
func (w subjectRuns) valuesByRound(figure string) map[int]float64 {
	found := make(map[int]float64)
	for _, run := range w.runs {
		if v, ok := run.Figures[figure]; ok && run.IsValid() {
			found[run.Round] = v
		}
	}
	return found
}

func (w subjectRuns) valuesOfValidRuns(figure string) []float64 {
	return slices.Collect(maps.Values(w.valuesByRound(figure)))
}

func (w subjectRuns) medianOfFigure(figure string) (float64, bool) {
	return stats.Median(w.valuesOfValidRuns(figure))
}

func (w subjectRuns) formatMedian(f probe.Figure) string {
	v, ok := w.medianOfFigure(f.Name)
	if !ok {
		return probe.NoFigure
	}
	return f.Format(v)
}

func formatRelativeMargin(values []float64) (textOrNoFigure string) {
	const fewRounds = 5 // below this number, the ± can exceed the value
	s, ok := stats.RelativeMedianMargin(values)
	switch {
	case !ok:
		return probe.NoFigure
	case s > 1 && len(values) <= fewRounds:
		return "too few rounds"
	}
	return fmt.Sprintf("±%.1f %%", s*100)
}

func (w subjectRuns) ratiosPerRoundTo(base subjectRuns, figure string) []float64 {
	return stats.RatiosOfSameRounds(w.valuesByRound(figure), base.valuesByRound(figure))
}

// bestSubjectByFigure returns the runs of the subject with the best median of a figure. It ignores the excluded
// subjects. If none of the other subjects has the figure, it returns a subjectRuns without runs.
func bestSubjectByFigure(rows []subjectRuns, f probe.Figure, excluded ...string) (found subjectRuns) {
	var most float64
	for _, w := range rows {
		v, ok := w.medianOfFigure(f.Name)
		if v *= float64(f.Better); ok && (found.subject == "" || v > most) && !slices.Contains(excluded, w.subject) {
			found, most = w, v
		}
	}
	return found
}

func (w subjectRuns) lastValidRun() (last *result.Run) {
	for _, run := range w.runs {
		if run.IsValid() {
			last = run
		}
	}
	return last
}

// describeFailures states in how many rounds the subject failed. It returns "" if it never failed.
func (w subjectRuns) describeFailures() string {
	n, reason := 0, ""
	for _, run := range w.runs {
		if run.Error != "" {
			n, reason = n+1, cmp.Or(reason, run.FirstErrorLine())
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%s failed in %d of %d rounds: %s", w.subject, n, len(w.runs), reason)
}

// whyFigureIsMissing returns the reason why the subject has no value of f. It returns "" if there is a value.
func (w subjectRuns) whyFigureIsMissing(f probe.Figure) string {
	if _, ok := w.medianOfFigure(f.Name); ok {
		return ""
	}
	for _, run := range w.runs {
		if run.Error != "" {
			return w.subject + " has failed: " + run.FirstErrorLine()
		}
		if run.Skipped != "" {
			return w.subject + " was not run: " + run.Skipped
		}
	}
	if len(w.runs) == 0 {
		return w.subject + " was not run"
	}
	return w.subject + " has no figure of this kind"
}

// firstWatchdogKill describes the first run that the memory watchdog killed. It returns nil if there is no such run.
func (w subjectRuns) firstWatchdogKill() *result.Killed {
	for _, run := range w.runs {
		if run.Jobs != nil && run.Jobs.Killed != nil {
			return run.Jobs.Killed
		}
	}
	return nil
}

type runProblem struct {
	word string
	page.Remark
}

// Short names for failed and skipped runs.
const (
	wordFailed = "FAILED"
	wordNotRun = "not run"
)

func problemsOfRun(run *result.Run) (all []runProblem) {
	if run.Error != "" {
		all = append(all, runProblem{wordFailed, page.Remark{Tone: page.Bad, Text: run.Error}})
	}
	if run.Skipped != "" {
		all = append(all, runProblem{wordNotRun, page.Remark{Tone: page.Warn, Text: run.Skipped}})
	}
	for _, m := range run.Caveats {
		all = append(all, runProblem{m.Rule, page.Remark{Tone: page.Warn, Text: m.Detail}})
	}
	return all
}

// formatProblemsWithWorstTone lists the problems of the runs, and how many runs have each problem. tone is the tone of
// the worst problem.
func (w subjectRuns) formatProblemsWithWorstTone() (text string, tone page.Tone) {
	counts := make(map[string]int)
	for _, run := range w.runs {
		for _, p := range problemsOfRun(run) {
			counts[p.word]++
			if tone != page.Bad {
				tone = p.Tone
			}
		}
	}
	return formatWordFrequencies(counts, len(w.runs)), tone
}

// describeRuleBreaks states how many of the valid runs broke one of probe.UncertainRules. If no run did, text is "".
// atLeastHalf reports whether at least half of the valid runs broke such a rule.
func (w subjectRuns) describeRuleBreaks() (text string, atLeastHalf bool) {
	runs, doubted, rules := 0, 0, []string(nil)
	for _, run := range w.runs {
		if !run.IsValid() {
			continue
		}
		broken := slices.DeleteFunc(slices.Clone(probe.UncertainRules), func(rule string) bool { return !run.HasCaveat(rule) })
		if runs++; len(broken) > 0 {
			doubted++
		}
		rules = append(rules, broken...)
	}
	if doubted == 0 {
		return "", false
	}
	slices.Sort(rules)
	return fmt.Sprintf("%d of %d runs of %s were marked %s", doubted, runs, w.subject, scenario.JoinAsEnglishList(slices.Compact(rules))), 2*doubted >= runs
}

func formatWordFrequencies(counts map[string]int, runs int) string {
	words := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	for i, word := range words {
		words[i] = fmt.Sprintf("%s %d/%d", word, counts[word], runs)
	}
	return strings.Join(words, ", ")
}

func plannedConnsOfSubject(r *result.Report, w scenario.Workload, subject string) int {
	if s := r.Scenario.FindSubject(subject); s != nil {
		return w.WithMaxConns(s.MaxConns).Connections
	}
	return w.Connections
}
