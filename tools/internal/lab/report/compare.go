package report

import (
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/tools/internal/lab/probe"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
	"github.com/myriad-go/myriad/tools/internal/lab/stats"
)

const (
	// maxCompared bounds the sets of a comparison.
	maxCompared = 16
	// ComparisonFormat is what the JSON of a Comparison says that it is.
	ComparisonFormat = "myriad-comparison-1"
)

// Comparison is what sets say of the same figures. Each of the others is compared with the
// first. docs/scenarios.md lists the keys of its JSON.
type Comparison struct {
	Format  string        `json:"format"`
	Reports []ComparedSet `json:"reports"`
	// Warnings say what is not alike in the sets, so that a difference of figures may come
	// of that; Missing what is in some of the sets only; Failed of which subjects runs have
	// failed, in any of the sets; Broken which of those failed in more of their rounds than
	// in the first set, where they had figures.
	Warnings []string `json:"warnings"`
	Missing  []string `json:"missing"`
	Failed   []string `json:"failed"`
	Broken   []string `json:"broken"`
	// Figures are those that are better when they are lower, or when they are higher, in
	// the first set's order.
	Figures []ComparedFigure `json:"figures"`

	sets []*result.Set
}

// ComparedSet says what one of the sets is.
type ComparedSet struct {
	Name    string         `json:"name"`
	Version string         `json:"version"`
	Machine result.Machine `json:"machine"`
	Date    time.Time      `json:"date"`
	Command string         `json:"command"`
	Scale   string         `json:"scale"`
}

// ComparedFigure is a figure of a subject under a workload, in each set.
type ComparedFigure struct {
	Scenario string          `json:"scenario"`
	Workload string          `json:"workload"`
	Subject  string          `json:"subject"`
	Figure   string          `json:"figure"`
	Heading  string          `json:"heading"`
	Unit     page.Unit       `json:"unit"`
	Better   string          `json:"better"`
	Values   []ComparedValue `json:"values"`
}

func (f *ComparedFigure) where() string {
	return strings.Join([]string{f.Scenario, f.Workload, f.Subject}, "/")
}

// ComparedValue is a figure in one set. Median is nil without rounds, and where it is the
// latency of no job; PlusMinus with fewer than 2 rounds; Change in the first set, and where
// that or this one lacks the figure.
type ComparedValue struct {
	Rounds    int      `json:"rounds"`
	Median    *float64 `json:"median"`
	PlusMinus *float64 `json:"plus_minus"`
	Change    *Change  `json:"change"`

	values []float64
}

// The verdicts of a Change.
const (
	Better    = "better"
	Worse     = "worse"
	Unchanged = "not significant"
	TooFew    = "too few rounds"
)

// Change is how a figure of one set differs from that of the first.
type Change struct {
	// Ratio is the median divided by the first's; nil where one of them is, or the first
	// is not above 0.
	Ratio *float64 `json:"ratio"`
	// P is how likely so much of a difference in ranks is without a cause.
	P float64 `json:"p"`
	// Verdict is Better, Worse, Unchanged, or TooFew where it can't be decided: by the rank
	// test, or with too few rounds for that by whether the medians are further apart than
	// both ± together. Why says which, in words.
	Verdict string `json:"verdict"`
	Why     string `json:"why"`

	// relative is what the median is more, as a part of the first: -0.1 is 10 % less. It is
	// infinite where the first is 0, or only one of them is the latency of no job.
	relative float64
}

// Compare compares sets, 2 to 16, by what they are called. Where only is set, it keeps the
// figures whose "scenario/workload/subject/figure" it matches.
func Compare(names []string, sets []*result.Set, only *regexp.Regexp) (*Comparison, error) {
	if len(sets) < 2 || len(sets) > maxCompared || len(names) != len(sets) {
		return nil, scenario.Errorf("%d reports with %d names; expected 2 to %d, and a name for each", len(sets), len(names), maxCompared)
	}
	c := &Comparison{
		Format: ComparisonFormat, Warnings: []string{}, Missing: []string{}, Failed: []string{}, Broken: []string{}, // not null in JSON
		Figures: []ComparedFigure{}, sets: sets,
	}
	for i, s := range sets {
		c.Reports = append(c.Reports, ComparedSet{names[i], s.Version, s.Machine, s.Date, s.Command, s.Scale})
		if i > 0 {
			c.warn(i)
		}
	}
	for _, r := range sets[0].Reports {
		c.report(r, only)
	}
	for i, s := range sets[1:] {
		for _, r := range s.Reports {
			if sets[0].Report(r.Scenario.Name) == nil {
				c.miss("%s: only in %s.", r.Scenario.Name, names[i+1])
			}
		}
	}
	switch {
	case len(c.Figures)+len(c.Broken) > 0:
		return c, nil
	case only != nil:
		return nil, scenario.Errorf("%q matches no figure that the reports have in common; expected to match a SCENARIO/WORKLOAD/SUBJECT/FIGURE such as \"quick/echo-100/net/tps\"", only)
	}
	return nil, scenario.Errorf("%s have no figure in common; expected reports of the same scenarios", scenario.Join(names))
}

func (c *Comparison) miss(text string, args ...any) {
	c.Missing = append(c.Missing, fmt.Sprintf(text, args...))
}

// warn says how a set differs from the first.
func (c *Comparison) warn(i int) {
	a, b := c.sets[0], c.sets[i]
	differ := func(what string, first, other any) {
		if fmt.Sprint(first) != fmt.Sprint(other) {
			c.Warnings = append(c.Warnings, fmt.Sprintf("Another %s: %s has %q, %s has %q.", what, c.Reports[0].Name, fmt.Sprint(first), c.Reports[i].Name, fmt.Sprint(other)))
		}
	}
	differ("machine", a.Machine.Hardware(), b.Machine.Hardware())
	differ("kernel", a.Machine.Kernel, b.Machine.Kernel)
	differ("version of Go", a.Machine.Go, b.Machine.Go)
	differ("version of Myriad", a.Version, b.Version)
	differ("scale", a.Scale, b.Scale)
	for _, r := range a.Reports {
		other := b.Report(r.Scenario.Name)
		if other == nil {
			continue
		}
		differ("pinning of "+r.Scenario.Name, r.Pinning, other.Pinning)
		for _, x := range r.Scenario.Subjects {
			name := r.Scenario.Name + "/" + x.Name
			if o := other.Scenario.Subject(x.Name); o != nil {
				differ("command of "+name, strings.Join(x.Command, " "), strings.Join(o.Command, " "))
				differ("most connections of "+name, x.MaxConns, o.MaxConns)
			}
		}
		for _, w := range r.Scenario.Workloads {
			if o := other.Scenario.Workload(w.Name); o != nil && !scenario.Same(w, *o) {
				c.Warnings = append(c.Warnings, fmt.Sprintf("%s/%s is not the same workload in %s and %s.", r.Scenario.Name, w.Name, c.Reports[0].Name, c.Reports[i].Name))
			}
		}
	}
}

// report compares what the first set's report has in common with those of the others.
func (c *Comparison) report(r *result.Report, only *regexp.Regexp) {
	name := r.Scenario.Name
	if !slices.ContainsFunc(c.sets[1:], func(s *result.Set) bool { return s.Report(name) != nil }) {
		c.miss("%s: only in %s.", name, c.Reports[0].Name)
		return
	}
	for _, w := range r.Scenario.Workloads {
		first, rows := rowsOf(r, w.Name), make([][]row, len(c.sets))
		for i, s := range c.sets {
			if o := s.Report(name); o != nil {
				rows[i] = rowsOf(o, w.Name)
			}
			for _, x := range rows[i] {
				if len(rowNamed(first, x.subject).runs) == 0 {
					c.miss("%s/%s/%s: only in %s.", name, w.Name, x.subject, c.Reports[i].Name)
				}
			}
		}
		for _, x := range first {
			same := make([]row, len(rows))
			for i := range rows {
				same[i] = rowNamed(rows[i], x.subject)
			}
			c.row(ComparedFigure{Scenario: name, Workload: w.Name, Subject: x.subject}, same, only)
		}
	}
}

// row compares the figures of a subject that the first set and another one have, and says where
// it failed.
func (c *Comparison) row(of ComparedFigure, rows []row, only *regexp.Regexp) {
	where, had := of.where(), false
	for _, f := range probe.Figures() {
		first := rows[0].values(f.Name)
		if f.Better == probe.Neither || only != nil && !only.MatchString(where+"/"+f.Name) || len(first) == 0 {
			continue
		}
		had = true
		one := of
		one.Figure, one.Heading, one.Unit = f.Name, f.Heading, f.Unit
		one.Better = map[probe.Better]string{probe.Lower: "lower", probe.Higher: "higher"}[f.Better]
		common := false
		for i, x := range rows {
			values := x.values(f.Name)
			v := ComparedValue{Rounds: len(values), Median: finite(stats.Median(values)), PlusMinus: finite(stats.Margin(values)), values: values}
			if i > 0 && len(values) > 0 {
				v.Change, common = change(f, first, values), true
			}
			if len(values) == 0 && x.complete() {
				c.miss("%s: no %s in %s.", where, f.Heading, c.Reports[i].Name)
			}
			one.Values = append(one.Values, v)
		}
		if common {
			c.Figures = append(c.Figures, one)
		}
	}
	if !had && only != nil {
		return
	}
	before, _ := rows[0].failures()
	for i, x := range rows {
		n, why := x.failures()
		switch {
		case n > 0:
			text := fmt.Sprintf("%s failed in %d of %d rounds in %s: %s", where, n, len(x.runs), c.Reports[i].Name, why)
			c.Failed = append(c.Failed, text)
			if had && n*len(rows[0].runs) > before*len(x.runs) {
				c.Broken = append(c.Broken, text)
			}
		case len(x.runs) == 0:
			c.miss("%s: not in %s.", where, c.Reports[i].Name)
		case !x.complete():
			c.miss("%s: not run in %s: %s.", where, c.Reports[i].Name, strings.TrimSuffix(x.runs[0].Skipped, "."))
		}
	}
}

// change compares the values of the rounds, of which there are some in both.
func change(f probe.Figure, a, b []float64) *Change {
	was, _ := stats.Median(a)
	is, _ := stats.Median(b)
	n, m := len(a), len(b)
	d := &Change{P: stats.Test(a, b), Verdict: Unchanged, relative: (is - was) / math.Abs(was)}
	never := stats.IsNever(is) != stats.IsNever(was)
	switch {
	case is == was:
		d.relative = 0
	case never:
		d.relative = math.Copysign(math.Inf(1), is-was)
	}
	if was > 0 && !stats.IsNever(was) && !stats.IsNever(is) {
		d.Ratio = finite(is/was, true)
	}
	left, known := stats.Margin(a)
	right, known2 := stats.Margin(b)
	significant := false
	switch {
	case stats.CanTell(n, m):
		significant, d.Why = d.P <= stats.Alpha, fmt.Sprintf("p=%.3f", d.P)
	case never:
		significant, d.Why = true, "no job against some"
	case n < 2 || m < 2:
		d.Verdict, d.Why = TooFew, "need ≥ 2 rounds, better 4"
	case !known || !known2:
		d.Verdict, d.Why = TooFew, "no ± is known, need ≥ 4 rounds"
	case math.Abs(is-was) > left+right:
		significant, d.Why = true, "further apart than both ±"
	default:
		d.Why = "within both ±"
	}
	separator := ", "
	if stats.CanTell(n, m) {
		separator = " "
	}
	d.Why += fmt.Sprintf("%sn=%d+%d", separator, n, m)
	if significant && is != was {
		d.Verdict = Worse
		if (is > was) == (f.Better == probe.Higher) {
			d.Verdict = Better
		}
	}
	return d
}

// finite is a value, nil where there is none that JSON can have.
func finite(v float64, ok bool) *float64 {
	if !ok || stats.IsNever(v) || math.IsInf(v, 0) || math.IsNaN(v) {
		return nil
	}
	return &v
}

// String is the change of the median in words.
func (d *Change) String() string {
	if math.IsInf(d.relative, 0) || math.IsNaN(d.relative) {
		return "to or from nothing"
	}
	return fmt.Sprintf("%+.1f %%", d.relative*100)
}

// counts says of each set how many figures have which verdict.
func (c *Comparison) counts() []map[string]int {
	all := make([]map[string]int, len(c.sets))
	for i := range all {
		all[i] = make(map[string]int)
		for _, f := range c.Figures {
			if d := f.Values[i].Change; d != nil {
				all[i][d.Verdict]++
			}
		}
	}
	return all
}

// Undecided says of how many figures the verdict is TooFew, and how many are compared, each
// once a set.
func (c *Comparison) Undecided() (few, all int) {
	for _, counts := range c.counts() {
		few += counts[TooFew]
		for _, n := range counts {
			all += n
		}
	}
	return few, all
}

// Regressions are sentences on the subjects that failed in more of their rounds than in the
// first set, and on the figures that are significantly worse than there, by more than a part of
// that, such as 0.05.
func (c *Comparison) Regressions(bound float64) []string {
	all := slices.Clone(c.Broken)
	for _, f := range c.Figures {
		for i, v := range f.Values {
			if d := v.Change; d != nil && d.Verdict == Worse && math.Abs(d.relative) > bound {
				all = append(all, fmt.Sprintf("%s: %s is worse in %s: %s, %s", f.where(), f.Heading, c.Reports[i].Name, d, d.Why))
			}
		}
	}
	return all
}

// WriteJSON writes the comparison as one indented JSON object.
func (c *Comparison) WriteJSON(w io.Writer) error { return result.WriteJSON(w, c) }

// Page is the comparison for people.
func (c *Comparison) Page() page.Page {
	var names []string
	for _, s := range c.Reports {
		names = append(names, s.Name)
	}
	p := page.Page{Title: "Comparison", Lead: "What " + scenario.Join(names) + " say of the same figures."}
	for _, s := range c.Reports {
		fact := s.Date.UTC().Format("2006-01-02 15:04 MST") + "; " + s.Machine.String()
		if s.Version != "" {
			fact += "; Myriad " + s.Version
		}
		p.Facts = append(p.Facts, [2]string{s.Name, fact})
	}
	p.Sections = append(p.Sections, c.overview())
	var section *page.Section
	var workload string
	var table *page.Table
	for i := range c.Figures {
		f := &c.Figures[i]
		if section == nil || section.Title != f.Scenario {
			p.Sections = append(p.Sections, page.Section{Title: f.Scenario})
			section, workload = &p.Sections[len(p.Sections)-1], ""
		}
		if workload != f.Workload {
			workload, table = f.Workload, c.table()
			section.Parts = append(section.Parts, page.Part{Heading: workload}, page.Part{Table: table})
		}
		f.line(table)
	}
	return p
}

func (c *Comparison) overview() page.Section {
	s := page.Section{Title: "Overview", Lead: "Medians over the rounds with ±, a confidence interval of 95 %; a change is that of the median. " +
		"p is that of the rank test of Mann and Whitney: ~ is a difference that is not significant (p > 0.05). " +
		"With too few rounds for that test, which needs 4 in each report, medians differ that are further apart than both ± together. " +
		"With fewer than 2, which have no ±, a figure is not judged."}
	s.Parts = append(s.Parts, remarks("", slices.Concat(bounded(page.Bad, c.Failed), bounded(page.Warn, c.Warnings), bounded(page.Faint, c.Missing)))...)
	t := &page.Table{Caption: "How many figures are better or worse than in " + c.Reports[0].Name + ".", Figures: true}
	verdicts := []string{Better, Worse, Unchanged, TooFew}
	t.Add(append([]string{"report"}, verdicts...)...)
	for i, counts := range c.counts()[1:] {
		line := []string{c.Reports[i+1].Name}
		for _, v := range verdicts {
			line = append(line, fmt.Sprint(counts[v]))
		}
		t.Add(line...)
	}
	s.Parts = append(s.Parts, page.Part{Table: t})
	return s
}

// table is one without lines.
func (c *Comparison) table() *page.Table {
	head := []string{"subject, figure", c.Reports[0].Name, "±"}
	for _, s := range c.Reports[1:] {
		head = append(head, s.Name, "±", "change", "why")
	}
	t := &page.Table{}
	t.Add(head...)
	return t
}

// line adds the figure to a table.
func (f *ComparedFigure) line(t *page.Table) {
	figure, _ := probe.Named(f.Figure)
	line := []string{f.Subject + ", " + f.Heading}
	tones := map[int]page.Tone{}
	for i, v := range f.Values {
		middle := probe.None
		if m, ok := stats.Median(v.values); ok {
			middle = figure.Text(m)
		}
		line = append(line, middle, spread(v.values))
		switch d := v.Change; {
		case i == 0:
		case d == nil:
			line = append(line, probe.None, "")
		case d.Verdict == Better || d.Verdict == Worse:
			tones[len(line)] = map[string]page.Tone{Better: page.Good, Worse: page.Bad}[d.Verdict]
			line = append(line, d.String(), d.Verdict+", "+d.Why)
		default:
			line = append(line, "~", d.Why)
		}
	}
	t.Add(line...)
	for column, tone := range tones {
		t.SetTone(column, tone)
	}
}
