package report

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/tools/internal/lab/probe"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
	"github.com/myriad-go/myriad/tools/internal/lab/stats"
)

const maxRemarks = 60

// maxNamedClaims is the maximum number of unmet claims that the first sentence of a report lists by name. If there are
// more, the sentence states only the number of the others.
const maxNamedClaims = 8

func WriteJSONAndHTMLFiles(dir string, s *result.Set) error {
	p := NewReportPage(s)
	return errors.Join(
		result.WriteFileAtomically(dir, "report.json", s.WriteJSON),
		result.WriteFileAtomically(dir, "report.html", p.WriteHTML),
	)
}

func WriteTextReport(w io.Writer, s *result.Set) error {
	p := NewReportPage(s)
	return p.WriteText(w)
}

// NewReportPage returns a page with the answer, an overview, a section for each scenario, and timelines.
func NewReportPage(s *result.Set) page.Page {
	p := page.Page{Title: pageTitle(s), Facts: listSetFacts(s)}
	p.Lead, p.Tone = runOutcomeSentence(s)
	for _, r := range s.Reports {
		if a := buildAnswerText(r); a.clauses != nil {
			p.Remarks = []page.Remark{{Tone: p.Tone, Text: p.Lead}}
			p.Lead, p.Tone = r.Scenario.Name+": "+a.String(), page.Plain
			break
		}
	}
	p.Sections = append(p.Sections, buildOverviewSection(s))
	for _, r := range s.Reports {
		p.Sections = append(p.Sections, buildScenarioResultsSection(r))
	}
	for _, r := range s.Reports {
		if x := buildTimelineSection(r); len(x.Parts) > 0 {
			p.Sections = append(p.Sections, x)
		}
	}
	return p
}

func pageTitle(s *result.Set) string {
	var names []string
	for _, r := range s.Reports {
		names = append(names, r.Scenario.Name)
	}
	if len(names) == 0 || len(names) > 3 {
		return "Myriad bench"
	}
	return "Myriad bench: " + scenario.JoinAsEnglishList(names)
}

func listSetFacts(s *result.Set) [][2]string {
	all := [][2]string{
		{"Machine", s.Machine.String()}, {"Myriad", cmp.Or(s.Version, "not known")},
		{"Date", s.Date.UTC().Format(time.DateTime + " MST")},
	}
	if s.Took > 0 {
		all = append(all, [2]string{"Took", s.Took.Round(time.Second).String()})
	}
	return append(all, [2]string{"Command", s.Command}, [2]string{"Scale", cmp.Or(s.Scale, "as the scenarios are written")})
}

type runSummary struct {
	runs, failed, skipped, withCaveats, missing int

	rules    map[string]int // number of runs that broke each rule
	unmet    []string       // unmet claims
	problems []page.Remark  // without duplicates
}

func countRunOutcomesAndProblems(r *result.Report) runSummary {
	n := runSummary{runs: len(r.Runs), missing: max(r.Planned-len(r.Runs), 0), rules: make(map[string]int)}
	problem := func(tone page.Tone, words ...string) {
		words = slices.DeleteFunc(words, func(word string) bool { return word == "" })
		x := page.Remark{Tone: tone, Text: r.Scenario.Name + ": " + strings.Join(words, ": ")}
		if !slices.Contains(n.problems, x) {
			n.problems = append(n.problems, x)
		}
	}
	for i := range r.Runs {
		run := &r.Runs[i]
		where := run.Workload + "/" + run.Subject
		switch {
		case run.Error != "":
			n.failed++
			problem(page.Bad, where, wordFailed, run.FirstErrorLine())
		case run.Skipped != "":
			n.skipped++
			problem(page.Warn, where, wordNotRun, run.Skipped)
		case len(run.Caveats) > 0:
			n.withCaveats++
		}
		for _, m := range run.Caveats {
			n.rules[m.Rule]++
		}
	}
	for _, v := range r.Verdicts {
		if v.Outcome == result.NotMet {
			n.unmet = append(n.unmet, r.Scenario.Name+": "+v.Of)
			problem(page.Bad, v.Of, v.Outcome, v.Text)
		}
	}
	return n
}

func (n *runSummary) worstTone() page.Tone {
	switch {
	case n.failed+len(n.unmet) > 0:
		return page.Bad
	case n.missing+n.skipped+n.withCaveats > 0:
		return page.Warn
	}
	return page.Good
}

func runOutcomeSentence(s *result.Set) (string, page.Tone) {
	var n runSummary
	for _, r := range s.Reports {
		one := countRunOutcomesAndProblems(r)
		n.runs += one.runs
		n.failed += one.failed
		n.unmet = append(n.unmet, one.unmet...)
		n.missing += one.missing + one.skipped
		n.withCaveats += one.withCaveats
	}
	text := "No run failed, and none broke a rule."
	switch {
	case n.failed > 0:
		text = fmt.Sprintf("%d of %d runs failed.", n.failed, n.runs)
	case len(n.unmet) > 0:
		names := slices.Compact(n.unmet)
		if more := len(names) - maxNamedClaims; more > 0 {
			names = append(names[:maxNamedClaims:maxNamedClaims], fmt.Sprintf("%d more, in their sections", more))
		}
		text = fmt.Sprintf("No run failed, but %s: %s.", format.Plural(len(n.unmet), "claim was not met", "claims were not met"), strings.Join(names, "; "))
	case n.missing > 0:
		text = fmt.Sprintf("No run failed, but %s.", format.Plural(n.missing, "run was not made", "runs were not made"))
	case n.withCaveats > 0:
		text = fmt.Sprintf("No run failed, but %d of %d broke a rule: their figures say less.", n.withCaveats, n.runs)
	}
	return text, n.worstTone()
}

func buildOverviewSection(s *result.Set) page.Section {
	x := page.Section{Title: "Overview"}
	runs := &page.Table{Caption: "Runs, and the rules that they broke: each run with its marks is in the scenario's section."}
	runs.AddRow("scenario", "runs", "failed", "not made", "marked", "rules broken")
	var published, problems []page.Remark
	answered := false
	for _, r := range s.Reports {
		if a := buildAnswerText(r); a.clauses != nil {
			switch {
			case answered:
				x.Parts = append(x.Parts, page.Part{Text: r.Scenario.Name + ": " + a.String()})
			case len(s.Reports) > 1: // a single report's sentence is the page's first
				x.Parts = append(x.Parts, page.Part{Bars: a.chart})
			}
			answered = true
		}
		n := countRunOutcomesAndProblems(r)
		runs.AddRow(r.Scenario.Name, fmt.Sprint(n.runs), fmt.Sprint(n.failed), fmt.Sprint(n.skipped),
			fmt.Sprint(n.withCaveats), formatWordFrequencies(n.rules, n.runs))
		if tone := n.worstTone(); tone != page.Good {
			runs.SetLastRowTone(0, tone)
		}
		problems = append(problems, n.problems...)
		for i := range r.Scenario.References {
			c := newPublishedComparisonTable(r, &r.Scenario.References[i])
			if len(c.comparisons)+len(c.notRun) > 0 {
				x := c.summarizeDesignComparisons()
				x.Text = c.reference.Title + " (" + r.Scenario.Name + "): " + x.Text
				published = append(published, x)
			}
		}
	}
	x.Parts = append(x.Parts, page.Part{Table: runs})
	x.Parts = append(x.Parts, remarksUnderHeading("Ours beside published designs", published)...)
	if more := len(problems) - maxRemarks; more > 0 {
		problems = append(problems[:maxRemarks], page.Remark{Text: fmt.Sprintf("And %d more, in their sections.", more)})
	}
	x.Parts = append(x.Parts, remarksUnderHeading("What was not as it should be", problems)...)
	return x
}

func remarksUpToLimit(tone page.Tone, texts []string) (all []page.Remark) {
	for i, text := range texts {
		if i == maxRemarks {
			return append(all, page.Remark{Tone: tone, Text: fmt.Sprintf("And %d more, in their sections.", len(texts)-i)})
		}
		all = append(all, page.Remark{Tone: tone, Text: text})
	}
	return all
}

// remarksUnderHeading returns a heading followed by the remarks. Without remarks, it returns nil.
func remarksUnderHeading(heading string, remarks []page.Remark) (parts []page.Part) {
	if len(remarks) == 0 {
		return nil
	}
	if heading != "" {
		parts = append(parts, page.Part{Heading: heading})
	}
	return append(parts, page.Part{Remarks: remarks})
}

// foldedRemarksPart returns a list of remarks that is collapsed on the HTML page. Without remarks, it returns nil.
func foldedRemarksPart(title string, remarks []page.Remark) []page.Part {
	if len(remarks) == 0 {
		return nil
	}
	return []page.Part{{Remarks: remarks, Fold: fmt.Sprintf("%s: %d", title, len(remarks))}}
}

func buildScenarioResultsSection(r *result.Report) page.Section {
	s := &r.Scenario
	x := page.Section{Title: s.Name, Lead: s.Question}
	if a := buildAnswerText(r); a.clauses != nil {
		x.Parts = append(x.Parts, page.Part{Text: a.String()}, page.Part{Bars: a.chart})
	}
	for _, text := range append(strings.Split(s.About, "\n\n"), howToReadFiguresNote(r)) {
		if text = strings.TrimSpace(text); text != "" {
			x.Parts = append(x.Parts, page.Part{Text: text})
		}
	}
	x.Parts = append(x.Parts, remarksUnderHeading("", remarksUpToLimit(page.Plain, r.Notes))...)
	for _, w := range s.Workloads {
		x.Parts = append(x.Parts, buildWorkloadParts(r, w)...)
	}
	for i := range s.References {
		x.Parts = append(x.Parts, newPublishedComparisonTable(r, &s.References[i]).buildPageParts()...)
	}
	var claims []page.Remark
	for _, v := range r.Verdicts {
		of := func(p scenario.ReferenceTable) bool { return p.Title == v.Of }
		if !slices.ContainsFunc(s.References, of) {
			words := slices.DeleteFunc([]string{v.Of, v.Outcome, v.Text}, func(word string) bool { return word == "" })
			claims = append(claims, page.Remark{Tone: toneByOutcome[v.Outcome], Text: strings.Join(words, ": ")})
		}
	}
	x.Parts = append(x.Parts, remarksUnderHeading("Claims", claims)...)
	if names := s.SubjectsNeedingPeers(); len(names) > 0 {
		text := fmt.Sprintf("Missing: %s, which are part of the module peers. To add them: "+
			"go build -C tools/peers -o FILE . && myriad bench %s --peers FILE", scenario.JoinAsEnglishList(names), s.Name)
		x.Parts = append(x.Parts, remarksUnderHeading("", []page.Remark{{Tone: page.Faint, Text: text}})...)
	}
	x.Parts = append(x.Parts, buildSizeAndLatencyCharts(r)...)
	return x
}

func howToReadFiguresNote(r *result.Report) string {
	s := &r.Scenario
	pinning := r.Pinning.String()
	if !slices.ContainsFunc(s.Workloads, func(w scenario.Workload) bool { return !w.Unpinned }) {
		pinning = "none: not asked for"
	}
	rounds := strconv.Itoa(s.Rounds)
	for _, w := range s.Workloads {
		if n := s.RoundsFor(w); n != s.Rounds {
			rounds += fmt.Sprintf("; %s %d", w.Name, n)
		}
	}
	text := fmt.Sprintf("Pinning: %s. Figures are medians over the rounds (%s), subjects in turn; ± is a confidence interval of 95 %%, which one round does not have", pinning, rounds)
	if s.Baseline != "" {
		text += "; the ratio is the median of each round's ratio to " + s.Baseline
	}
	return text + ". A mark such as noise 1/3 is a rule that one of three runs broke."
}

func buildWorkloadParts(r *result.Report, w scenario.Workload) []page.Part {
	rows := groupRunsBySubject(r, w.Name)
	if len(rows) == 0 {
		return nil
	}
	parts := []page.Part{{Heading: w.Name}}
	t := buildFigureTable(r, rows)
	t.Caption = w.Caption
	parts = append(parts, page.Part{Table: t})
	parts = append(parts, jobsAndAutoSubjectNotes(r, w, rows)...)
	for _, x := range rows {
		for _, run := range x.runs {
			if t := buildHeldPhaseTable(run); t != nil {
				parts = append(parts, page.Part{Heading: fmt.Sprintf("%s, round %d: %v", x.subject, run.Round, run.Took.Round(time.Second))}, page.Part{Table: t})
			}
			var log []page.Remark
			for _, line := range run.Log {
				log = append(log, page.Remark{Text: x.subject + ": " + line})
			}
			parts = append(parts, foldedRemarksPart(fmt.Sprintf("What %s said in round %d", x.subject, run.Round), log)...)
		}
	}
	return append(parts, foldedRemarksPart("Marks and failures", listProblemsOfRuns(rows))...)
}

// jobsAndAutoSubjectNotes returns up to two notes to show below a workload's table: one describes the submitted jobs,
// the other compares the subject that chooses its I/O model automatically with the best other subject.
func jobsAndAutoSubjectNotes(r *result.Report, w scenario.Workload, rows []subjectRuns) (parts []page.Part) {
	tps, _ := probe.FindFigure("tps")
	if auto := findSubjectRuns(rows, r.Scenario.Auto); len(auto.runs) > 0 {
		other := bestSubjectByFigure(rows, tps, r.Scenario.Auto)
		if ratio, ok := stats.Median(auto.ratiosPerRoundTo(other, "tps")); ok {
			parts = append(parts, page.Part{Text: fmt.Sprintf("%s is at %.2f of the best of the others (%s)", auto.subject, ratio, other.subject)})
		}
	}
	p := w.FindPhase(scenario.Jobs)
	if p == nil || rows[0].runs[0].Jobs == nil {
		return parts
	}
	text := fmt.Sprintf("Offered are %s a second; memory %.2f GB, deadline %v, %s jobs may wait, warm-up %v",
		format.Whole(rows[0].runs[0].Jobs.Rate), float64(p.Memory)/1e9, p.Deadline, format.Count(p.Queue), p.WarmUp)
	for i := range r.Runs {
		if c := r.Runs[i].Capacity; c != nil && c.Shape == p.Shape && c.PerSecond > 0 {
			text += fmt.Sprintf("; the capacity is %s jobs a second in a closed loop (%s); other pools get the best number of workers, %d",
				format.Whole(c.PerSecond), c.Side, c.Workers)
		}
	}
	return append(parts, page.Part{Text: text + "."})
}

// buildFigureTable returns a table of a workload's figures. The main figure comes first, with its margin (±) and its
// ratio to the baseline. The other figures follow in the order of the probes.
func buildFigureTable(r *result.Report, rows []subjectRuns) *page.Table {
	t := &page.Table{Figures: true}
	base := findSubjectRuns(rows, r.Scenario.Baseline)
	var shown []probe.Figure
	has := func(figure string) bool {
		return slices.ContainsFunc(rows, func(x subjectRuns) bool { return len(x.valuesOfValidRuns(figure)) > 0 })
	}
	main := r.Scenario.Main
	if !has(main) {
		main = ""
	}
	for _, f := range probe.AllFigures() {
		switch {
		case f.Hidden || !has(f.Name):
		case f.Name == main, f.Main && main == "":
			main, shown = f.Name, slices.Insert(shown, 0, f)
		default:
			shown = append(shown, f)
		}
	}
	line := []string{"subject"}
	for _, f := range shown {
		line = append(line, f.Heading)
		if f.Name == main {
			line = append(line, "±")
			if len(base.runs) > 0 {
				line = append(line, "ratio to "+base.subject)
			}
		}
	}
	t.AddRow(append(line, "marks")...)
	for _, x := range rows {
		line := []string{x.subject}
		for _, f := range shown {
			line = append(line, x.formatMedian(f))
			if f.Name != main {
				continue
			}
			line = append(line, formatRelativeMargin(x.valuesOfValidRuns(f.Name)))
			if len(base.runs) > 0 {
				ratio := probe.NoFigure
				if v, ok := stats.Median(x.ratiosPerRoundTo(base, f.Name)); ok {
					ratio = fmt.Sprintf("%.2f", v)
				}
				line = append(line, ratio)
			}
		}
		marks, tone := x.formatProblemsWithWorstTone()
		t.AddRow(append(line, marks)...)
		t.SetLastRowTone(len(line), tone)
	}
	return t
}

// buildHeldPhaseTable returns a table of the phases of a run with long-open connections, or nil for other runs.
func buildHeldPhaseTable(run *result.Run) (tableOrNil *page.Table) {
	before := run.FindSample(probe.Before)
	if before == nil || len(run.Phases) == 0 {
		return nil
	}
	t := &page.Table{Figures: true}
	t.AddRow("phase", "took", "connections", "count", "rate/s", "p50", "p99", "max", "server CPU", "load CPU", "server bytes/conn", "load bytes/conn", "kernel bytes/conn", "free MB")
	for i := range run.Phases {
		p := &run.Phases[i]
		line := []string{p.Name, fmt.Sprintf("%.1fs", p.Took.Seconds())}
		end := run.FindSample(p.Name)
		open := int64(0)
		if end != nil && end.Counts != nil {
			open = end.Counts.Open
		}
		latency := func(d time.Duration) string {
			if p.Latency.Count == 0 {
				return probe.NoFigure
			}
			return format.Latency(d)
		}
		line = append(line, format.Count(open), format.Count(p.Count), format.Whole(p.Rate),
			latency(p.Latency.P50), latency(p.Latency.P99), latency(p.Latency.Max), fmt.Sprintf("%.2f", p.ServerCPU), fmt.Sprintf("%.2f", p.LoadCPU))
		each := func(growth int64) string {
			if open == 0 {
				return probe.NoFigure
			}
			return format.Whole(float64(growth) / float64(open))
		}
		if end == nil {
			end = before
		}
		t.AddRow(append(line, each(end.Server.Anonymous-before.Server.Anonymous), each(end.Load.Anonymous-before.Load.Anonymous),
			each(end.KernelMemory()-before.KernelMemory()), format.Whole(float64(end.Free)/1e6))...)
	}
	return t
}

func listProblemsOfRuns(rows []subjectRuns) (all []page.Remark) {
	for _, x := range rows {
		for _, run := range x.runs {
			where := fmt.Sprintf("%s, round %d: ", x.subject, run.Round)
			for _, p := range problemsOfRun(run) {
				all = append(all, page.Remark{Tone: p.Tone, Text: where + p.word + ": " + p.Text})
			}
		}
	}
	return all
}
