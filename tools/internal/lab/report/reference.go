package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/tools/internal/lab/probe"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
	"github.com/myriad-go/myriad/tools/internal/lab/stats"
)

// comparison is the result of comparing one of our subjects with a design by one figure. A design is our own
// reimplementation of a published server. Our subject and the design were measured in the same rounds.
type comparison struct {
	figure  probe.Figure
	outcome string
	// ratioText is the ratio with its margin (±). A ratio above 1 means that our subject is better than the design.
	ratioText string
	text      string
	// designKilled reports that the memory watchdog killed the design, which thus lacks this figure.
	// worstComparisonOutcome ignores this comparison if there are others.
	designKilled bool
}

// oneRoundMargin is the assumed margin (±) of a ratio from only one round.
const oneRoundMargin = 0.1

// compareByRatiosPerRound compares one of our subjects with a design by one figure. It computes the ratio of their
// values in each round, and decides by the median of the ratios. If a comparison is not possible, the outcome is
// NotMeasured, and the text of the result states the reason. connsNote is added to the text.
func compareByRatiosPerRound(rowName string, f probe.Figure, ours, design subjectRuns, connsNote string) comparison {
	var ratios []float64
	alone := 0 // number of rounds in which only the design did no work
	theirs := design.valuesByRound(f.Name)
	for round, v := range ours.valuesByRound(f.Name) {
		switch b, ok := theirs[round]; {
		case !ok || meansNothingWasDone(f, v):
		case meansNothingWasDone(f, b):
			alone++
		case v > 0 && b > 0:
			ratios = append(ratios, math.Pow(v/b, float64(f.Better)))
		}
	}
	values := ours.formatMedian(f) + " against " + design.formatMedian(f)
	reason := cmp.Or(reasonToExcludeOurs(f, ours), ours.whyFigureIsMissing(f))
	ended := ""
	if reason == "" {
		ended = watchdogKillNoteUnlessPeakMemory(f, design)
		reason = cmp.Or(ended, design.whyFigureIsMissing(f))
	}
	ratio, ok := stats.Median(ratios)
	if reason == "" && !ok && alone == 0 {
		reason = "there is no ratio of " + strings.Replace(values, "against", "and", 1) + " in the same round"
	}
	if reason != "" {
		if ended != "" && ok {
			reason = fmt.Sprintf("%s: %s until then", ended, values)
		}
		return comparison{figure: f, outcome: result.NotMeasured, ratioText: probe.NoFigure, designKilled: ended != "", text: fmt.Sprintf(
			"%s: %s is not measured against %s in %s: %s.", rowName, ours.subject, design.subject, f.Heading, strings.TrimSuffix(reason, "."))}
	}
	s := comparison{figure: f, outcome: result.Level}
	margin, rounds := oneRoundMargin, max(len(ours.runs), len(design.runs))
	switch len(ratios) {
	case 0:
		ratio, s.ratioText = math.Inf(1), "alone"
	case 1:
		s.ratioText = fmt.Sprintf("%.2f", ratio)
	default:
		margin, _ = stats.MedianConfidenceMargin(ratios)
		s.ratioText = fmt.Sprintf("%.2f ±%.2f", ratio, margin)
	}
	says := "level with " + design.subject + ", within the spread,"
	switch {
	case ratio-margin > 1:
		s.outcome, says = result.Ahead, "ahead of "+design.subject
	case ratio+margin < 1:
		s.outcome, says = result.Behind, "behind "+design.subject
	}
	s.text = fmt.Sprintf("%s: %s is %s in %s, %s (%s)", rowName, ours.subject, says, f.Heading, s.ratioText, values)
	if connsNote != "" {
		s.text += ", " + connsNote
	}
	s.appendCaveatsAndMarkUncertain(ours, design, len(ratios), rounds, alone)
	return s
}

// appendCaveatsAndMarkUncertain appends the number of rounds and the caveats of both subjects to the text of the
// comparison. If at least half of the runs of one subject broke one of probe.UncertainRules, it changes the outcome to
// result.Uncertain.
func (s *comparison) appendCaveatsAndMarkUncertain(ours, design subjectRuns, ratioCount, rounds, roundsDesignDidNothing int) {
	switch {
	case ratioCount == 1:
		s.text += fmt.Sprintf(", in one round: ±%.0f %% is assumed", oneRoundMargin*100)
	case ratioCount > 1 && ratioCount < rounds:
		s.text += fmt.Sprintf(", in %d of %d rounds", ratioCount, rounds)
	}
	if roundsDesignDidNothing > 0 {
		s.text += fmt.Sprintf("; %s came to nothing in %d of %d rounds", design.subject, roundsDesignDidNothing, rounds)
	}
	for _, w := range []subjectRuns{ours, design} {
		if marks, _ := w.formatProblemsWithWorstTone(); marks != "" {
			s.text += fmt.Sprintf("; %s is marked %s", w.subject, marks)
		}
		if text, most := w.describeRuleBreaks(); most {
			s.outcome = result.Uncertain
			s.text += "; not certain: " + text
		}
	}
	s.text += "."
}

// meansNothingWasDone reports whether value v of figure f shows that the subject did nothing in the run.
func meansNothingWasDone(f probe.Figure, v float64) bool {
	return stats.IsNeverLatency(v) || f.Better == probe.Higher && v == 0
}

// watchdogKillNoteUnlessPeakMemory returns a note if the memory watchdog killed a run of the design. If no run was
// killed, it returns "". If f is the peak memory, it also returns "", because a killed run has a peak memory, too.
func watchdogKillNoteUnlessPeakMemory(f probe.Figure, design subjectRuns) (noteOrEmpty string) {
	ended := design.firstWatchdogKill()
	if ended == nil || f.Name == "peak-memory" {
		return ""
	}
	return fmt.Sprintf("%s was ended by the watchdog of this lab at %.2f GB after %.1f s", design.subject, float64(ended.Limit)/1e9, ended.After.Seconds())
}

// reasonToExcludeOurs returns the reason why our subject must not be compared, or "". A subject is excluded if a run
// failed, did nothing, or broke one of probe.ExcludingRules.
func reasonToExcludeOurs(f probe.Figure, ours subjectRuns) string {
	if failed := ours.describeFailures(); failed != "" {
		return failed
	}
	broken := make(map[string]int)
	for _, run := range ours.runs {
		if v, ok := run.Figures[f.Name]; ok && meansNothingWasDone(f, v) {
			return ours.subject + " came to nothing"
		}
		for _, m := range run.Caveats {
			if slices.Contains(probe.ExcludingRules, m.Rule) {
				broken[m.Rule]++
			}
		}
	}
	if len(broken) > 0 {
		return "its runs are marked " + formatWordFrequencies(broken, len(ours.runs))
	}
	return ""
}

var toneByOutcome = map[string]page.Tone{
	result.Ahead: page.Good, result.Behind: page.Bad, result.Level: page.Warn, result.NotMeasured: page.Warn, result.Uncertain: page.Warn,
	result.Met: page.Good, result.NotMet: page.Bad,
}

// worstComparisonOutcome returns the worst outcome of the comparisons. It ignores comparisons whose design was killed
// by the memory watchdog, unless this applies to all comparisons.
func worstComparisonOutcome(all []comparison) string {
	if fair := slices.DeleteFunc(slices.Clone(all), func(s comparison) bool { return s.designKilled }); len(fair) > 0 {
		all = fair
	}
	for _, o := range []string{result.Behind, result.NotMeasured, result.Uncertain, result.Level} {
		if slices.ContainsFunc(all, func(s comparison) bool { return s.outcome == o }) {
			return o
		}
	}
	return result.Ahead
}

func listRatiosNamingFiguresIfSeveral(all []comparison) string {
	if len(all) == 1 {
		return all[0].ratioText
	}
	var words []string
	for _, s := range all {
		words = append(words, s.figure.Heading+" "+s.ratioText)
	}
	return strings.Join(words, ", ")
}

// publishedComparisonTable is a table of published figures, with our own measurements added below each row.
type publishedComparisonTable struct {
	report      *result.Report
	reference   *scenario.ReferenceTable
	table       *page.Table
	comparisons [][]comparison // by our row, then by figure in the reference row's About list
	unloaded    []page.Remark  // reference rows whose connections were not loaded
	notRun      []string       // reference rows without runs here
	reducedRows int            // number of rows run with fewer connections or for less time
}

func newPublishedComparisonTable(r *result.Report, p *scenario.ReferenceTable) *publishedComparisonTable {
	c := &publishedComparisonTable{report: r, reference: p, table: &page.Table{Caption: "Below each published row stand its design and ours as they were measured here, in the same run: medians over the rounds. " +
		"Ahead is the median of each round's ratio to the design, above 1 where ours is ahead."}}
	line := []string{"row"}
	if p.Count != "" {
		line = append(line, p.Count)
	}
	for _, column := range p.Columns {
		if column.Unit != "" {
			column.Name += ", " + column.Unit
		}
		line = append(line, column.Name)
	}
	c.table.AddRow(append(line, "marks", "ahead")...)
	for i := range p.Rows {
		c.addLinesAndComparisons(&p.Rows[i])
	}
	return c
}

// addLinesAndComparisons adds several rows to the table: the published row, a row for our reimplementation of the
// published design, and a row for each of our subjects.
func (c *publishedComparisonTable) addLinesAndComparisons(p *scenario.ReferenceRow) {
	c.addPublishedLine(p)
	w, rows := c.report.Scenario.FindWorkload(p.Workload), groupRunsBySubject(c.report, p.Workload)
	if w == nil || len(rows) == 0 {
		c.notRun = append(c.notRun, p.Name+": not measured: no run of "+p.Workload+" was made.")
		return
	}
	if w.Reduced || w.Connections < p.Count {
		c.reducedRows++
	}
	design := findSubjectRuns(rows, p.Design)
	if len(design.runs) > 0 {
		c.addMeasuredLine("its design here: "+p.Design, p, *w, rows, design, nil)
	}
	before := len(c.comparisons)
	var designs []string
	for _, row := range c.reference.Rows {
		designs = append(designs, row.Design)
	}
	for _, ours := range rows {
		if len(p.Ours) > 0 && !slices.Contains(p.Ours, ours.subject) || len(p.Ours) == 0 && slices.Contains(designs, ours.subject) {
			continue
		}
		all := c.compareWithDesignByRowFigures(p, *w, ours, design)
		c.addMeasuredLine("ours: "+ours.subject, p, *w, rows, ours, all)
		if len(all) > 0 {
			c.comparisons = append(c.comparisons, all)
		}
	}
	if len(p.About) > 0 && len(c.comparisons) == before {
		c.notRun = append(c.notRun, p.Name+": not measured: none of ours was run beside a design under "+w.Name+".")
	}
}

// addPublishedLine adds a published row. If the row states how many requests were in flight, this number should equal
// the number of connections. If the numbers differ by more than 10 %, addPublishedLine marks the row, because some of
// the connections had no load.
func (c *publishedComparisonTable) addPublishedLine(p *scenario.ReferenceRow) {
	line := []string{"published: " + p.Name}
	if c.reference.Count != "" {
		line = append(line, formatCountOrNoFigure(p.Count))
	}
	mark := ""
	for i, column := range c.reference.Columns {
		v, ok := column.ParsePublishedCell(p.Cells[i])
		if column.Figure == "in-flight" && ok && p.Count > 0 && math.Abs(v/float64(p.Count)-1) > 0.10 {
			mark = "never loaded"
			c.unloaded = append(c.unloaded, page.Remark{Tone: page.Warn, Text: fmt.Sprintf(
				"%s, as published: by Little's law %s requests were in flight, which is not the %s connections that it was to have.",
				p.Name, p.Cells[i], format.Count(p.Count))})
		}
	}
	line = append(line, p.Cells...)
	c.table.AddRow(append(line, mark, "")...)
	for i := range line {
		c.table.SetLastRowTone(i, page.Faint)
	}
	if mark != "" {
		c.table.SetLastRowTone(len(line), page.Warn)
	}
}

func (c *publishedComparisonTable) addMeasuredLine(label string, p *scenario.ReferenceRow, w scenario.Workload, rows []subjectRuns, x subjectRuns, all []comparison) {
	line := []string{label}
	if c.reference.Count != "" {
		line = append(line, formatCountOrNoFigure(plannedConnsOfSubject(c.report, w, x.subject)))
	}
	for _, column := range c.reference.Columns {
		text := formatMeasuredFigureOrRatio(column, rows, x)
		if column.Relative == "" && slices.Contains(p.About, column.Figure) {
			if s := formatRelativeMargin(x.valuesOfValidRuns(column.Figure)); s != probe.NoFigure {
				text += " (" + s + ")"
			}
		}
		line = append(line, text)
	}
	marks, tone := x.formatProblemsWithWorstTone()
	c.table.AddRow(append(line, marks, listRatiosNamingFiguresIfSeveral(all))...)
	c.table.SetLastRowTone(len(line), tone)
	if len(all) > 0 {
		c.table.SetLastRowTone(len(line)+1, toneByOutcome[worstComparisonOutcome(all)])
	}
}

func formatCountOrNoFigure(n int) string {
	if n == 0 {
		return probe.NoFigure
	}
	return format.Count(n)
}

// formatMeasuredFigureOrRatio formats a subject's figure for a column of a published table. If c.Relative names a base
// subject, it formats the ratio of the subject's figure to the figure of the base subject. If the memory watchdog
// killed the base subject, it formats both the ratio and the subject's figure. If there is no ratio, it formats the
// subject's figure.
func formatMeasuredFigureOrRatio(c scenario.Column, allSubjects []subjectRuns, subject subjectRuns) string {
	f, ok := probe.FindFigure(c.Figure)
	if !ok {
		return probe.NoFigure
	}
	if base := findSubjectRuns(allSubjects, c.Relative); c.Relative != "" {
		if v, ok := stats.Median(subject.ratiosPerRoundTo(base, f.Name)); ok {
			text := format.Rounded(v) + "×"
			if watchdogKillNoteUnlessPeakMemory(f, base) != "" {
				text += " (" + subject.formatMedian(f)
				if ended := subject.firstWatchdogKill(); ended != nil {
					text += fmt.Sprintf(" in %.1f s, then ended at %.2f GB", ended.After.Seconds(), float64(ended.Limit)/1e9)
				}
				text += ")"
			}
			return text
		}
	}
	v, ok := subject.medianOfFigure(f.Name)
	if !ok || stats.IsNeverLatency(v) {
		return probe.NoFigure
	}
	if unit := scenario.UnitFactors[c.Unit]; unit != 0 {
		return format.Rounded(v/unit) + " " + c.Unit
	}
	return f.Format(v)
}

// compareWithDesignByRowFigures compares one of our subjects with the design of a published row. There is one
// comparison for each figure in p.About. If the row has no design, there are none.
func (c *publishedComparisonTable) compareWithDesignByRowFigures(p *scenario.ReferenceRow, w scenario.Workload, ours, design subjectRuns) (all []comparison) {
	if p.Design == "" {
		return nil
	}
	at := ""
	us, them := plannedConnsOfSubject(c.report, w, ours.subject), plannedConnsOfSubject(c.report, w, p.Design)
	switch {
	case us != them:
		at = fmt.Sprintf("with %s against %s %s", format.Count(us), format.Count(them), c.reference.Count)
	case p.Count > 0 && us != p.Count:
		at = fmt.Sprintf("with %s %s instead of %s", format.Count(us), c.reference.Count, format.Count(p.Count))
	}
	for _, name := range p.About {
		if f, ok := probe.FindFigure(name); ok {
			all = append(all, compareByRatiosPerRound(p.Name, f, ours, design, at))
		}
	}
	return all
}

func (c *publishedComparisonTable) summarizeDesignComparisons() page.Remark {
	counts := make(map[string]int)
	for _, all := range c.comparisons {
		counts[worstComparisonOutcome(all)]++
	}
	tone := page.Good
	text := fmt.Sprintf("%d of %d rows of ours are ahead of the published design in the same run", counts[result.Ahead], len(c.comparisons))
	var rest []string
	for _, o := range []string{result.Level, result.Uncertain, result.NotMeasured, result.Behind} {
		if counts[o] > 0 {
			rest, tone = append(rest, fmt.Sprintf("%d %s", counts[o], o)), toneByOutcome[o]
		}
	}
	if n := len(c.notRun) + c.reducedRows; n > 0 {
		rest = append(rest, fmt.Sprintf("%d of %d published rows not measured at their size", n, len(c.reference.Rows)))
		if tone == page.Good {
			tone = page.Warn
		}
	}
	if len(rest) > 0 {
		text += "; " + strings.Join(rest, ", ")
	}
	return page.Remark{Tone: tone, Text: text + "."}
}

func (c *publishedComparisonTable) listVerdicts() (all []result.Verdict) {
	for _, s := range slices.Concat(c.comparisons...) {
		all = append(all, result.Verdict{Of: c.reference.Title, Outcome: s.outcome, Text: s.text})
	}
	for _, text := range c.notRun {
		all = append(all, result.Verdict{Of: c.reference.Title, Outcome: result.NotMeasured, Text: text})
	}
	return all
}

func (c *publishedComparisonTable) buildPageParts() []page.Part {
	p := c.reference
	text := "Published by " + p.Source + "."
	if p.Machine != "" {
		text += " Measured there on " + p.Machine + "."
	}
	parts := []page.Part{{Heading: "Published: " + p.Title}, {Text: text}, {Table: c.table}}
	if len(c.comparisons) > 0 {
		parts = append(parts, page.Part{Remarks: []page.Remark{c.summarizeDesignComparisons()}})
	}
	var all []page.Remark
	for _, v := range c.listVerdicts() {
		all = append(all, page.Remark{Tone: toneByOutcome[v.Outcome], Text: v.Text})
	}
	parts = append(parts, foldedRemarksPart("Each row in words", all)...)
	all = nil
	for _, text := range p.Faults {
		all = append(all, page.Remark{Text: "Known fault of what is published: " + text})
	}
	for _, text := range p.Notes {
		all = append(all, page.Remark{Text: text})
	}
	return append(parts, foldedRemarksPart("What is to be known of this table", append(all, c.unloaded...))...)
}
