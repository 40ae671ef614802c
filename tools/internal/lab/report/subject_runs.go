// Package report makes what was found readable: a page that begins with the answer of each
// scenario, in a sentence and a picture, then tables, published tables with ours beside them,
// claims, charts and time lines; and the runs in the format of Go benchmarks, for benchstat.
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

// subjectRuns is one subject's runs under one workload.
type subjectRuns struct {
	subject string
	runs    []*result.Run
}

// groupRunsBySubject collects the runs of a workload by subject, in the scenario's order. Subjects without
// a run have no row.
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

// findSubjectRuns finds a subject's row, one without runs when it was not run.
func findSubjectRuns(rows []subjectRuns, subject string) subjectRuns {
	i := slices.IndexFunc(rows, func(w subjectRuns) bool { return w.subject == subject })
	if i < 0 {
		return subjectRuns{subject: subject}
	}
	return rows[i]
}

// valuesByRound are the values of a figure, by round.
func (w subjectRuns) valuesByRound(figure string) map[int]float64 {
	found := make(map[int]float64)
	for _, run := range w.runs {
		if v, ok := run.Figures[figure]; ok && run.IsValid() {
			found[run.Round] = v
		}
	}
	return found
}

func (w subjectRuns) values(figure string) []float64 {
	return slices.Collect(maps.Values(w.valuesByRound(figure)))
}

func (w subjectRuns) median(figure string) (float64, bool) { return stats.Median(w.values(figure)) }

// formatMedian is the median of a figure over the rounds.
func (w subjectRuns) formatMedian(f probe.Figure) string {
	v, ok := w.median(f.Name)
	if !ok {
		return probe.NoFigure
	}
	return f.Format(v)
}

// formatRelativeMargin is the ± of values as a part of their median.
func formatRelativeMargin(values []float64) string {
	const fewRounds = 5 // of which the ± can be larger than what it is of
	s, ok := stats.RelativeMargin(values)
	switch {
	case !ok:
		return probe.NoFigure
	case s > 1 && len(values) <= fewRounds:
		return "too few rounds"
	}
	return fmt.Sprintf("±%.1f %%", s*100)
}

// ratiosTo are the figure's ratios to the base's in the same round.
func (w subjectRuns) ratiosTo(base subjectRuns, figure string) []float64 {
	return stats.RatiosByRound(w.valuesByRound(figure), base.valuesByRound(figure))
}

// bestSubject finds the row that is best by a figure among those of other subjects than some.
func bestSubject(rows []subjectRuns, f probe.Figure, excluded ...string) (found subjectRuns) {
	var most float64
	for _, w := range rows {
		v, ok := w.median(f.Name)
		if v *= float64(f.Better); ok && (found.subject == "" || v > most) && !slices.Contains(excluded, w.subject) {
			found, most = w, v
		}
	}
	return found
}

// lastValidRun is the last run that counts, nil if none does.
func (w subjectRuns) lastValidRun() (last *result.Run) {
	for _, run := range w.runs {
		if run.IsValid() {
			last = run
		}
	}
	return last
}

// failureText says in how many rounds the row failed, "" for none.
func (w subjectRuns) failureText() string {
	n, why := 0, ""
	for _, run := range w.runs {
		if run.Error != "" {
			n, why = n+1, cmp.Or(why, run.FirstErrorLine())
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%s failed in %d of %d rounds: %s", w.subject, n, len(w.runs), why)
}

// missingReason says why a row has no figure, "" if it has one.
func (w subjectRuns) missingReason(f probe.Figure) string {
	if _, ok := w.median(f.Name); ok {
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

// watchdogKill is how the watchdog has ended a run of the row, nil if it has not.
func (w subjectRuns) watchdogKill() *result.Killed {
	for _, run := range w.runs {
		if run.Jobs != nil && run.Jobs.Killed != nil {
			return run.Jobs.Killed
		}
	}
	return nil
}

// runProblem is something that is wrong with a run, in a word and in a sentence.
type runProblem struct {
	word string
	page.Remark
}

// The words of runs that failed and that were not made; others are rules.
const (
	wordFailed = "FAILED"
	wordNotRun = "not run"
)

func listProblems(run *result.Run) (all []runProblem) {
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

// formatProblems names what is wrong with the runs, with how many of them have each, and says how
// serious that is.
func (w subjectRuns) formatProblems() (text string, tone page.Tone) {
	counts := make(map[string]int)
	for _, run := range w.runs {
		for _, p := range listProblems(run) {
			counts[p.word]++
			if tone != page.Bad {
				tone = p.Tone
			}
		}
	}
	return formatFrequencies(counts, len(w.runs)), tone
}

// uncertainty says how many of the runs that count broke a rule with which another run might have
// other figures, "" for none, and whether the medians stand on them: half of the runs, or more.
func (w subjectRuns) uncertainty() (text string, most bool) {
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
	return fmt.Sprintf("%d of %d runs of %s were marked %s", doubted, runs, w.subject, scenario.JoinWords(slices.Compact(rules))), 2*doubted >= runs
}

// formatFrequencies writes words with how many of the runs have each, the most frequent first.
func formatFrequencies(counts map[string]int, runs int) string {
	words := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	for i, word := range words {
		words[i] = fmt.Sprintf("%s %d/%d", word, counts[word], runs)
	}
	return strings.Join(words, ", ")
}

// connsOfSubject is how many a subject had under a workload.
func connsOfSubject(r *result.Report, w scenario.Workload, subject string) int {
	if s := r.Scenario.FindSubject(subject); s != nil {
		return w.LimitedTo(s.MaxConns).Connections
	}
	return w.Connections
}
