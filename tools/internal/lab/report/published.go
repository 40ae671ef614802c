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

// standing says how one subject of ours stands beside the design of a published row, by one
// figure, in the same rounds.
type standing struct {
	figure  probe.Figure
	outcome string
	// lead is the ratio, above 1 where ours is ahead, with its ±.
	lead string
	// text says it in a sentence.
	text string
	// cut says that the watchdog has ended the design: then other figures say how ours stands.
	cut bool
}

// oneRound is the ± of a ratio that is of one round, where none is known.
const oneRound = 0.1

// stand compares a row of ours with that of a design. The subject of the sentence is name; at
// says how many connections both had, where the published row had another number.
func stand(name string, f probe.Figure, ours, design row, at string) standing {
	var ratios []float64
	alone := 0 // rounds in which only the design came to nothing
	theirs := design.byRound(f.Name)
	for round, v := range ours.byRound(f.Name) {
		switch b, ok := theirs[round]; {
		case !ok || nothing(f, v):
		case nothing(f, b):
			alone++
		case v > 0 && b > 0:
			ratios = append(ratios, math.Pow(v/b, float64(f.Better)))
		}
	}
	values := ours.cell(f) + " against " + design.cell(f)
	why := cmp.Or(unfit(f, ours), ours.missing(f))
	ended := ""
	if why == "" {
		ended = cutOff(f, design)
		why = cmp.Or(ended, design.missing(f))
	}
	ratio, ok := stats.Median(ratios)
	if why == "" && !ok && alone == 0 {
		why = "there is no ratio of " + strings.Replace(values, "against", "and", 1) + " in the same round"
	}
	if why != "" {
		if ended != "" && ok {
			why = fmt.Sprintf("%s: %s until then", ended, values)
		}
		return standing{figure: f, outcome: result.NotMeasured, lead: probe.None, cut: ended != "", text: fmt.Sprintf(
			"%s: %s is not measured against %s in %s: %s.", name, ours.subject, design.subject, f.Heading, strings.TrimSuffix(why, "."))}
	}
	s := standing{figure: f, outcome: result.Level}
	margin, rounds := oneRound, max(len(ours.runs), len(design.runs))
	switch len(ratios) {
	case 0:
		ratio, s.lead = math.Inf(1), "alone"
	case 1:
		s.lead = fmt.Sprintf("%.2f", ratio)
	default:
		margin, _ = stats.MedianMargin(ratios)
		s.lead = fmt.Sprintf("%.2f ±%.2f", ratio, margin)
	}
	says := "level with " + design.subject + ", within the spread,"
	switch {
	case ratio-margin > 1:
		s.outcome, says = result.Ahead, "ahead of "+design.subject
	case ratio+margin < 1:
		s.outcome, says = result.Behind, "behind "+design.subject
	}
	s.text = fmt.Sprintf("%s: %s is %s in %s, %s (%s)", name, ours.subject, says, f.Heading, s.lead, values)
	if at != "" {
		s.text += ", " + at
	}
	s.qualify(ours, design, len(ratios), rounds, alone)
	return s
}

// qualify ends the sentence with what its ratio, of n rounds, does not say: how few they were, in
// how many the design came to nothing, and what is uncertain in either row.
func (s *standing) qualify(ours, design row, n, rounds, alone int) {
	switch {
	case n == 1:
		s.text += fmt.Sprintf(", in one round: ±%.0f %% is assumed", oneRound*100)
	case n > 1 && n < rounds:
		s.text += fmt.Sprintf(", in %d of %d rounds", n, rounds)
	}
	if alone > 0 {
		s.text += fmt.Sprintf("; %s came to nothing in %d of %d rounds", design.subject, alone, rounds)
	}
	for _, w := range []row{ours, design} {
		if marks, _ := w.marks(); marks != "" {
			s.text += fmt.Sprintf("; %s is marked %s", w.subject, marks)
		}
		if text, most := w.doubts(); most {
			s.outcome = result.Uncertain
			s.text += "; not certain: " + text
		}
	}
	s.text += "."
}

// nothing says whether a value is that of a run in which nothing was done.
func nothing(f probe.Figure, v float64) bool {
	return stats.IsNeverLatency(v) || f.Better == probe.Higher && v == 0
}

// cutOff says that the watchdog has ended a design, which leaves it no figure to compare but
// its memory: that was at least as much.
func cutOff(f probe.Figure, design row) string {
	ended := design.ended()
	if ended == nil || f.Name == "peak-memory" {
		return ""
	}
	return fmt.Sprintf("%s was ended by the watchdog of this lab at %.2f GB after %.1f s", design.subject, float64(ended.Limit)/1e9, ended.After.Seconds())
}

// unfit says why a row of ours is not compared though it may have figures: the rounds that are
// left of a row that failed in others would flatter it, and answers may be missing.
func unfit(f probe.Figure, ours row) string {
	if failed := ours.failed(); failed != "" {
		return failed
	}
	broken := make(map[string]int)
	for _, run := range ours.runs {
		if v, ok := run.Figures[f.Name]; ok && nothing(f, v) {
			return ours.subject + " came to nothing"
		}
		for _, m := range run.Caveats {
			if slices.Contains(probe.Breaking, m.Rule) {
				broken[m.Rule]++
			}
		}
	}
	if len(broken) > 0 {
		return "its runs are marked " + counted(broken, len(ours.runs))
	}
	return ""
}

// tones are those of the outcomes of verdicts.
var tones = map[string]page.Tone{
	result.Ahead: page.Good, result.Behind: page.Bad, result.Level: page.Warn, result.NotMeasured: page.Warn, result.Uncertain: page.Warn,
	result.Met: page.Good, result.NotMet: page.Bad,
}

// worst is the worst outcome of a row of ours, but for those of a design that the watchdog has
// ended if there are others.
func worst(all []standing) string {
	if fair := slices.DeleteFunc(slices.Clone(all), func(s standing) bool { return s.cut }); len(fair) > 0 {
		all = fair
	}
	for _, o := range []string{result.Behind, result.NotMeasured, result.Uncertain, result.Level} {
		if slices.ContainsFunc(all, func(s standing) bool { return s.outcome == o }) {
			return o
		}
	}
	return result.Ahead
}

// leads are the ratios by which a row is ahead.
func leads(all []standing) string {
	if len(all) == 1 {
		return all[0].lead
	}
	var words []string
	for _, s := range all {
		words = append(words, s.figure.Heading+" "+s.lead)
	}
	return strings.Join(words, ", ")
}

// publishedTable is a published table with ours in it.
type publishedTable struct {
	report    *result.Report
	published *scenario.ReferenceTable
	table     *page.Table
	standings [][]standing  // of each row of ours, by each figure that the published row is about
	unloaded  []page.Remark // published rows whose connections were not loaded
	missing   []string      // published rows of which nothing was run
	smaller   int           // others that were run with fewer connections, or for less time
}

// compare puts ours beside a published table.
func compare(r *result.Report, p *scenario.ReferenceTable) *publishedTable {
	c := &publishedTable{report: r, published: p, table: &page.Table{Caption: "Below each published row stand its design and ours as they were measured here, in the same run: medians over the rounds. " +
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
		c.row(&p.Rows[i])
	}
	return c
}

// row adds a published row, its design here, and those of ours.
func (c *publishedTable) row(p *scenario.ReferenceRow) {
	c.publishedLine(p)
	w, rows := c.report.Scenario.FindWorkload(p.Workload), rowsOf(c.report, p.Workload)
	if w == nil || len(rows) == 0 {
		c.missing = append(c.missing, p.Name+": not measured: no run of "+p.Workload+" was made.")
		return
	}
	if w.Reduced || w.Connections < p.Count {
		c.smaller++
	}
	design := rowNamed(rows, p.Design)
	if len(design.runs) > 0 {
		c.line("its design here: "+p.Design, p, *w, rows, design, nil)
	}
	before := len(c.standings)
	var designs []string
	for _, row := range c.published.Rows {
		designs = append(designs, row.Design)
	}
	for _, ours := range rows {
		if len(p.Ours) > 0 && !slices.Contains(p.Ours, ours.subject) || len(p.Ours) == 0 && slices.Contains(designs, ours.subject) {
			continue
		}
		all := c.stand(p, *w, ours, design)
		c.line("ours: "+ours.subject, p, *w, rows, ours, all)
		if len(all) > 0 {
			c.standings = append(c.standings, all)
		}
	}
	if len(p.About) > 0 && len(c.standings) == before {
		c.missing = append(c.missing, p.Name+": not measured: none of ours was run beside a design under "+w.Name+".")
	}
}

// publishedLine adds the row as it was published. By Little's law it may tell that the
// connections were not loaded.
func (c *publishedTable) publishedLine(p *scenario.ReferenceRow) {
	line := []string{"published: " + p.Name}
	if c.published.Count != "" {
		line = append(line, countOrNone(p.Count))
	}
	mark := ""
	for i, column := range c.published.Columns {
		v, ok := column.ParseCell(p.Cells[i])
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

// line adds what was measured of a subject.
func (c *publishedTable) line(name string, p *scenario.ReferenceRow, w scenario.Workload, rows []row, x row, all []standing) {
	line := []string{name}
	if c.published.Count != "" {
		line = append(line, countOrNone(connections(c.report, w, x.subject)))
	}
	for _, column := range c.published.Columns {
		text := cellOf(column, rows, x)
		if column.Relative == "" && slices.Contains(p.About, column.Figure) {
			if s := spread(x.values(column.Figure)); s != probe.None {
				text += " (" + s + ")"
			}
		}
		line = append(line, text)
	}
	marks, tone := x.marks()
	c.table.AddRow(append(line, marks, leads(all))...)
	c.table.SetLastRowTone(len(line), tone)
	if len(all) > 0 {
		c.table.SetLastRowTone(len(line)+1, tones[worst(all)])
	}
}

func countOrNone(n int) string {
	if n == 0 {
		return probe.None
	}
	return format.Count(n)
}

// cellOf writes a figure of a row as a published column has it. A multiple of what a subject had
// until the watchdog ended it has both figures, and says when that was.
func cellOf(c scenario.Column, rows []row, w row) string {
	f, ok := probe.Named(c.Figure)
	if !ok {
		return probe.None
	}
	if base := rowNamed(rows, c.Relative); c.Relative != "" {
		if v, ok := stats.Median(w.ratios(base, f.Name)); ok {
			text := format.Number(v) + "×"
			if cutOff(f, base) != "" {
				text += " (" + w.cell(f)
				if ended := w.ended(); ended != nil {
					text += fmt.Sprintf(" in %.1f s, then ended at %.2f GB", ended.After.Seconds(), float64(ended.Limit)/1e9)
				}
				text += ")"
			}
			return text
		}
	}
	v, ok := w.median(f.Name)
	if !ok || stats.IsNeverLatency(v) {
		return probe.None
	}
	if unit := scenario.UnitFactors[c.Unit]; unit != 0 {
		return format.Number(v/unit) + " " + c.Unit
	}
	return f.Text(v)
}

// stand compares a row of ours with that of the design by each figure that the published row
// is about. Without a design there is nothing to compare.
func (c *publishedTable) stand(p *scenario.ReferenceRow, w scenario.Workload, ours, design row) (all []standing) {
	if p.Design == "" {
		return nil
	}
	at := ""
	us, them := connections(c.report, w, ours.subject), connections(c.report, w, p.Design)
	switch {
	case us != them:
		at = fmt.Sprintf("with %s against %s %s", format.Count(us), format.Count(them), c.published.Count)
	case p.Count > 0 && us != p.Count:
		at = fmt.Sprintf("with %s %s instead of %s", format.Count(us), c.published.Count, format.Count(p.Count))
	}
	for _, name := range p.About {
		if f, ok := probe.Named(name); ok {
			all = append(all, stand(p.Name, f, ours, design, at))
		}
	}
	return all
}

// summary is how many rows of ours are ahead, and how the others stand.
func (c *publishedTable) summary() page.Remark {
	counts := make(map[string]int)
	for _, all := range c.standings {
		counts[worst(all)]++
	}
	tone := page.Good
	text := fmt.Sprintf("%d of %d rows of ours are ahead of the published design in the same run", counts[result.Ahead], len(c.standings))
	var rest []string
	for _, o := range []string{result.Level, result.Uncertain, result.NotMeasured, result.Behind} {
		if counts[o] > 0 {
			rest, tone = append(rest, fmt.Sprintf("%d %s", counts[o], o)), tones[o]
		}
	}
	if n := len(c.missing) + c.smaller; n > 0 {
		rest = append(rest, fmt.Sprintf("%d of %d published rows not measured at their size", n, len(c.published.Rows)))
		if tone == page.Good {
			tone = page.Warn
		}
	}
	if len(rest) > 0 {
		text += "; " + strings.Join(rest, ", ")
	}
	return page.Remark{Tone: tone, Text: text + "."}
}

// verdicts are those of the rows of ours, and of published rows of which nothing was run.
func (c *publishedTable) verdicts() (all []result.Verdict) {
	for _, s := range slices.Concat(c.standings...) {
		all = append(all, result.Verdict{Of: c.published.Title, Outcome: s.outcome, Text: s.text})
	}
	for _, text := range c.missing {
		all = append(all, result.Verdict{Of: c.published.Title, Outcome: result.NotMeasured, Text: text})
	}
	return all
}

// parts are the published table with ours in it, what is wrong with it, and how ours stand
// beside the published designs.
func (c *publishedTable) parts() []page.Part {
	p := c.published
	text := "Published by " + p.Source + "."
	if p.Machine != "" {
		text += " Measured there on " + p.Machine + "."
	}
	parts := []page.Part{{Heading: "Published: " + p.Title}, {Text: text}, {Table: c.table}}
	if len(c.standings) > 0 {
		parts = append(parts, page.Part{Remarks: []page.Remark{c.summary()}})
	}
	var all []page.Remark
	for _, v := range c.verdicts() {
		all = append(all, page.Remark{Tone: tones[v.Outcome], Text: v.Text})
	}
	parts = append(parts, folded("Each row in words", all)...)
	all = nil
	for _, text := range p.Faults {
		all = append(all, page.Remark{Text: "Known fault of what is published: " + text})
	}
	for _, text := range p.Notes {
		all = append(all, page.Remark{Text: text})
	}
	return append(parts, folded("What is to be known of this table", append(all, c.unloaded...))...)
}
