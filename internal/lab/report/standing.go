package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/internal/lab/probe"
	"github.com/myriad-go/myriad/internal/lab/result"
	"github.com/myriad-go/myriad/internal/lab/scenario"
	"github.com/myriad-go/myriad/internal/lab/stats"
	"github.com/myriad-go/myriad/internal/page"
)

// standing says how one subject of ours stands beside the design of a published row, by one
// figure, in the same run.
type standing struct {
	row             *scenario.PublishedRow
	figure          probe.Figure
	subject, design string
	at              string // how many connections both had, where the published row had another number
	// ratio is above 1 where ours is ahead, margin its ±; of one round there is none. It is
	// infinite where the design came to nothing in all rounds.
	ratio, margin float64
	// rounds are those that the ratio is of, alone those in which only the design came to
	// nothing, and of is how many were run.
	rounds, alone, of int
	ours, theirs      string // the figures
	marks             string // of both
	why               string // there is no ratio, "" if there is one
	cut               bool   // because the watchdog has ended the design: then other figures say how ours stands
}

// stand compares a row of ours with that of a design.
func stand(f probe.Figure, ours, design row) standing {
	s := standing{figure: f, subject: ours.subject, design: design.subject, ours: ours.cell(f), theirs: design.cell(f),
		of: max(len(ours.runs), len(design.runs))}
	for _, w := range []row{ours, design} {
		if marks := w.marks(); marks != "" {
			s.marks += fmt.Sprintf("; %s is marked %s", w.subject, marks)
		}
	}
	var all []float64
	theirs := design.byRound(f.Name)
	for round, v := range ours.byRound(f.Name) {
		b, ok := theirs[round]
		switch {
		case !ok || nothing(f, v):
		case nothing(f, b):
			s.alone++
		case v > 0 && b > 0 && f.Better == probe.Lower:
			all = append(all, b/v)
		case v > 0 && b > 0:
			all = append(all, v/b)
		}
	}
	s.rounds = len(all)
	if s.why = cmp.Or(unfit(f, ours), missing(f, ours)); s.why != "" {
		return s
	}
	if s.why = cutOff(f, design); s.why != "" {
		s.cut = true
		return s
	}
	if s.why = missing(f, design); s.why != "" {
		return s
	}
	var ok bool
	if s.ratio, ok = stats.Median(all); ok {
		s.margin, _ = stats.Margin(all)
	} else if s.alone > 0 {
		s.ratio = math.Inf(1)
	} else {
		s.why = "there is no ratio of " + s.ours + " and " + s.theirs + " in the same round"
	}
	return s
}

// nothing says whether a value is that of a run in which nothing was done.
func nothing(f probe.Figure, v float64) bool {
	return stats.IsNever(v) || f.Better == probe.Higher && v == 0
}

// cutOff says that the watchdog has ended a design, which leaves it no figure to compare but
// its memory: that was at least as much.
func cutOff(f probe.Figure, design row) string {
	ended := design.ended()
	if ended == nil || f.Name == "peak-memory" {
		return ""
	}
	return fmt.Sprintf("%s was ended by the watchdog of this lab at %.2f GB: not compared", design.subject, float64(ended.Most)/1e9)
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
		for _, m := range run.Marks {
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

// missing says why a row has no figure, "" if it has one.
func missing(f probe.Figure, w row) string {
	if _, ok := w.median(f.Name); ok {
		return ""
	}
	for _, run := range w.runs {
		if run.Error != "" {
			return w.subject + " has failed: " + run.Failure()
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

// oneRound is the ± of a ratio that is of one round, where none is known.
const oneRound = 0.1

func (s *standing) outcome() string {
	margin := s.margin
	if s.rounds == 1 {
		margin = oneRound
	}
	switch {
	case s.why != "":
		return result.NotMeasured
	case s.ratio-margin > 1:
		return result.Ahead
	case s.ratio+margin < 1:
		return result.Behind
	}
	return result.Level
}

// tones are those of the outcomes of verdicts.
var tones = map[string]page.Tone{
	result.Ahead: page.Good, result.Behind: page.Bad, result.Level: page.Warn, result.NotMeasured: page.Warn,
	result.Met: page.Good, result.NotMet: page.Bad,
}

// lead writes the ratio with its ±.
func (s *standing) lead() string {
	switch {
	case s.why != "":
		return probe.None
	case math.IsInf(s.ratio, 1):
		return "alone"
	case s.rounds < 2:
		return fmt.Sprintf("%.2f", s.ratio)
	}
	return fmt.Sprintf("%.2f ±%.2f", s.ratio, s.margin)
}

// String says it in a sentence.
func (s *standing) String() string {
	if s.cut {
		return fmt.Sprintf("%s: %s beside %s in %s: %s.", s.row.Name, s.subject, s.design, s.figure.Heading, s.why)
	}
	says := map[string]string{
		result.Ahead: "ahead of " + s.design, result.Behind: "behind " + s.design, result.Level: "level with " + s.design + ", within the spread",
	}[s.outcome()]
	if says == "" {
		return fmt.Sprintf("%s: %s is not measured against %s in %s: %s.", s.row.Name, s.subject, s.design, s.figure.Heading, strings.TrimSuffix(s.why, "."))
	}
	text := fmt.Sprintf("%s: %s is %s in %s, %s (%s against %s)", s.row.Name, s.subject, says, s.figure.Heading, s.lead(), s.ours, s.theirs)
	if s.at != "" {
		text += ", " + s.at
	}
	switch {
	case s.rounds == 1:
		text += fmt.Sprintf(", in one round, of which no spread is known: %.0f %% are taken for it", oneRound*100)
	case s.rounds > 1 && s.rounds < s.of:
		text += fmt.Sprintf(", in %d of %d rounds", s.rounds, s.of)
	}
	if s.alone > 0 {
		text += fmt.Sprintf("; %s came to nothing in %d of %d rounds", s.design, s.alone, s.of)
	}
	return text + s.marks + "."
}

// standings are those of one row of ours, by each figure that the published row is about.
type standings []standing

// outcome is the worst of them, but for those of a design that the watchdog has ended if there
// are others.
func (all standings) outcome() string {
	if fair := slices.DeleteFunc(slices.Clone(all), func(s standing) bool { return s.cut }); len(fair) > 0 {
		all = fair
	}
	for _, o := range []string{result.Behind, result.NotMeasured, result.Level} {
		if slices.ContainsFunc(all, func(s standing) bool { return s.outcome() == o }) {
			return o
		}
	}
	return result.Ahead
}

// leads are the ratios by which a row is ahead.
func (all standings) leads() string {
	if len(all) == 1 {
		return all[0].lead()
	}
	var words []string
	for _, s := range all {
		words = append(words, s.figure.Heading+" "+s.lead())
	}
	return strings.Join(words, ", ")
}

// comparison is a published table with ours in it.
type comparison struct {
	report    *result.Report
	published *scenario.Published
	table     *page.Table
	standings []standings
	unloaded  []page.Remark // published rows whose connections were not loaded
	missing   []string      // published rows of which nothing was run
}

// compare puts ours beside a published table.
func compare(r *result.Report, p *scenario.Published) *comparison {
	c := &comparison{report: r, published: p, table: &page.Table{Caption: "Below each published row stand its design and ours as they were measured here, in the same run: medians over the rounds. " +
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
	c.table.Add(append(line, "marks", "ahead")...)
	for i := range p.Rows {
		c.row(&p.Rows[i])
	}
	return c
}

// row adds a published row and those of ours.
func (c *comparison) row(p *scenario.PublishedRow) {
	c.publishedLine(p)
	w, rows := c.workload(p)
	if len(rows) == 0 {
		c.missing = append(c.missing, p.Name+": not measured: no run of "+p.Workload+" was made.")
		return
	}
	design := rowNamed(rows, p.Design)
	if len(design.runs) > 0 {
		c.line("its design here: "+p.Design, p, w, rows, design, nil)
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
		all := c.stand(p, w, ours, design)
		c.line("ours: "+ours.subject, p, w, rows, ours, all)
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
func (c *comparison) publishedLine(p *scenario.PublishedRow) {
	line := []string{"published: " + p.Name}
	if c.published.Count != "" {
		line = append(line, countOrNone(p.Count))
	}
	mark := ""
	for i, column := range c.published.Columns {
		v, ok := column.Value(p.Cells[i])
		if column.Figure == "in-flight" && ok && p.Count > 0 && math.Abs(v/float64(p.Count)-1) > 0.10 {
			mark = "never loaded"
			c.unloaded = append(c.unloaded, page.Remark{Tone: page.Warn, Text: fmt.Sprintf(
				"%s, as published: by Little's law %s requests were in flight, which is not the %s connections that it was to have.",
				p.Name, p.Cells[i], format.Count(p.Count))})
		}
	}
	line = append(line, p.Cells...)
	c.table.Add(append(line, mark, "")...)
	for i := range line {
		c.table.SetTone(i, page.Faint)
	}
	if mark != "" {
		c.table.SetTone(len(line), page.Warn)
	}
}

// line adds what was measured of a subject.
func (c *comparison) line(name string, p *scenario.PublishedRow, w scenario.Workload, rows []row, x row, all standings) {
	line := []string{name}
	if c.published.Count != "" {
		line = append(line, countOrNone(held(c.report, w, x.subject)))
	}
	for _, column := range c.published.Columns {
		text := cellOf(column, rows, x)
		if column.Relative == "" && slices.Contains(p.About, column.Figure) {
			if s := around(x.values(column.Figure)); s != probe.None {
				text += " (" + s + ")"
			}
		}
		line = append(line, text)
	}
	ahead, tone := "", page.Plain
	if len(all) > 0 {
		ahead, tone = all.leads(), tones[all.outcome()]
	}
	c.table.Add(append(line, x.marks(), ahead)...)
	c.table.SetTone(len(line), x.tone())
	c.table.SetTone(len(line)+1, tone)
}

func countOrNone(n int) string {
	if n == 0 {
		return probe.None
	}
	return format.Count(n)
}

// cellOf writes a figure of a row as a published column has it.
func cellOf(c scenario.Column, rows []row, w row) string {
	f, ok := probe.Named(c.Figure)
	if !ok {
		return probe.None
	}
	if base := rowNamed(rows, c.Relative); c.Relative != "" && cutOff(f, base) == "" {
		if v, ok := w.ratio(base, f.Name); ok {
			return threeDigits(v) + "×"
		}
	}
	v, ok := w.median(f.Name)
	if !ok || stats.IsNever(v) {
		return probe.None
	}
	if unit := scenario.Units[c.Unit]; unit != 0 {
		return threeDigits(v/unit) + " " + c.Unit
	}
	return f.Text(v)
}

// threeDigits writes a value with three significant digits, or all that stand before the
// point.
func threeDigits(v float64) string {
	switch {
	case math.Abs(v) >= 999.5:
		return format.Whole(v)
	case v >= 0.9995 || v == 0:
		return format.Fixed(v)
	}
	return fmt.Sprintf("%.3f", v)
}

// stand compares a row of ours with that of the design by each figure that the published row
// is about. Without a design there is nothing to compare.
func (c *comparison) stand(p *scenario.PublishedRow, w scenario.Workload, ours, design row) (all standings) {
	if p.Design == "" {
		return nil
	}
	design.subject = p.Design
	us, them := held(c.report, w, ours.subject), held(c.report, w, p.Design)
	for _, name := range p.About {
		f, ok := probe.Named(name)
		if !ok {
			continue
		}
		s := stand(f, ours, design)
		s.row = p
		switch {
		case us != them:
			s.at = fmt.Sprintf("with %s against %s %s", format.Count(us), format.Count(them), c.published.Count)
		case p.Count > 0 && us != p.Count:
			s.at = fmt.Sprintf("with %s %s instead of %s", format.Count(us), c.published.Count, format.Count(p.Count))
		}
		all = append(all, s)
	}
	return all
}

// workload finds the workload whose runs stand below a published row. Of those that the row
// names it is the first under which the design and one of ours have figures, and the design
// all the connections; otherwise the first under which both have figures, or else the first
// with runs.
func (c *comparison) workload(p *scenario.PublishedRow) (found scenario.Workload, rows []row) {
	best := 0
	for _, name := range append([]string{p.Workload}, p.Else...) {
		w := c.report.Scenario.Workload(name)
		if w == nil {
			continue
		}
		here := rowsOf(c.report, name)
		complete := func(is func(string) bool) bool {
			return slices.ContainsFunc(here, func(x row) bool { return is(x.subject) && x.complete() })
		}
		both := complete(func(s string) bool { return p.Design == "" || s == p.Design }) &&
			complete(func(s string) bool { return len(p.Ours) == 0 || slices.Contains(p.Ours, s) })
		fits := 3
		switch {
		case len(here) == 0:
			fits = 0
		case !both:
			fits = 1
		case held(c.report, *w, p.Design) < w.Connections:
			fits = 2
		}
		if fits > best {
			best, found, rows = fits, *w, here
		}
	}
	return found, rows
}

// tally says how many rows of ours stand how.
func (c *comparison) tally() (counts map[string]int) {
	counts = make(map[string]int)
	for _, all := range c.standings {
		counts[all.outcome()]++
	}
	return counts
}

// summary is how many rows of ours are ahead, and how the others stand.
func (c *comparison) summary() page.Remark {
	counts := c.tally()
	tone := page.Good
	text := fmt.Sprintf("%d of %d rows of ours are ahead of the published design in the same run", counts[result.Ahead], len(c.standings))
	var rest []string
	for _, o := range []string{result.Level, result.NotMeasured, result.Behind} {
		if counts[o] > 0 {
			rest, tone = append(rest, fmt.Sprintf("%d %s", counts[o], o)), tones[o]
		}
	}
	if n := len(c.missing); n > 0 {
		rest = append(rest, fmt.Sprintf("and nothing was measured of %d published", n))
		if tone == page.Good {
			tone = page.Warn
		}
	}
	if len(rest) > 0 {
		text += "; " + strings.Join(rest, ", ")
	}
	return page.Remark{Tone: tone, Text: text + "."}
}
