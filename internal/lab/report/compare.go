package report

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/myriad-go/myriad/internal/lab/probe"
	"github.com/myriad-go/myriad/internal/lab/result"
	"github.com/myriad-go/myriad/internal/lab/scenario"
	"github.com/myriad-go/myriad/internal/lab/stats"
)

// maxCompared bounds the sets of a comparison.
const maxCompared = 16

// Comparison is what sets say of the same figures. Each of the others is compared with the
// first.
type Comparison struct {
	// Names are what the sets are called, in order.
	Names []string
	Sets  []*result.Set
	// Warnings say what is not alike in the sets, so that a difference of figures may come
	// of that; Missing what is in some of the sets only; Failed of which subjects runs have
	// failed, in any of the sets.
	Warnings, Missing, Failed []string
	// Figures are those that are better when they are lower, or when they are higher, in
	// the first set's order.
	Figures []ComparedFigure
	// broken are those of Failed that failed in more of their rounds than in the first
	// set, where they had figures.
	broken []string
}

// ComparedFigure is a figure of a subject under a workload, in each set.
type ComparedFigure struct {
	Scenario, Workload, Subject string
	Figure                      probe.Figure
	// Values are those of the rounds, by set; none where the set lacks it.
	Values [][]float64
}

// Compare compares sets, 2 to 16, by what they are called. Where only is set, it keeps the
// figures whose "scenario/workload/subject/figure" it matches.
func Compare(names []string, sets []*result.Set, only *regexp.Regexp) (*Comparison, error) {
	if len(sets) < 2 || len(sets) > maxCompared || len(names) != len(sets) {
		return nil, scenario.Errorf("%d reports with %d names; expected 2 to %d, and a name for each", len(sets), len(names), maxCompared)
	}
	c := &Comparison{Names: names, Sets: sets}
	for i := range sets[1:] {
		c.warn(i + 1)
	}
	for _, r := range sets[0].Reports {
		c.add(r, only)
	}
	for i, s := range sets[1:] {
		for _, r := range s.Reports {
			if sets[0].Report(r.Scenario.Name) == nil {
				c.miss("%s: only in %s.", r.Scenario.Name, names[i+1])
			}
		}
	}
	switch {
	case len(c.Figures)+len(c.broken) > 0:
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
	a, b := c.Sets[0], c.Sets[i]
	differ := func(what, first, other string) {
		if first != other {
			c.Warnings = append(c.Warnings, fmt.Sprintf("Another %s: %s has %q, %s has %q.", what, c.Names[0], first, c.Names[i], other))
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
		differ("pinning of "+r.Scenario.Name, r.Pinning.String(), other.Pinning.String())
		for _, x := range r.Scenario.Subjects {
			name := r.Scenario.Name + "/" + x.Name
			if o := other.Scenario.Subject(x.Name); o != nil {
				differ("command of "+name, strings.Join(x.Command, " "), strings.Join(o.Command, " "))
				differ("most connections of "+name, fmt.Sprint(x.MaxConns), fmt.Sprint(o.MaxConns))
			}
		}
		for _, w := range r.Scenario.Workloads {
			if o := other.Scenario.Workload(w.Name); o != nil && !scenario.Same(w, *o) {
				c.Warnings = append(c.Warnings, fmt.Sprintf("%s/%s is not the same workload in %s and %s.", r.Scenario.Name, w.Name, c.Names[0], c.Names[i]))
			}
		}
	}
}

// add adds what the first set's report has in common with another one's.
func (c *Comparison) add(r *result.Report, only *regexp.Regexp) {
	name := r.Scenario.Name
	if !slices.ContainsFunc(c.Sets[1:], func(s *result.Set) bool { return s.Report(name) != nil }) {
		c.miss("%s: only in %s.", name, c.Names[0])
		return
	}
	for _, w := range r.Scenario.Workloads {
		rows := make([][]row, len(c.Sets))
		for i, s := range c.Sets {
			if o := s.Report(name); o != nil {
				rows[i] = rowsOf(o, w.Name)
			}
		}
		where := name + "/" + w.Name
		for i := range rows[1:] {
			for _, x := range rows[0] {
				if len(rowNamed(rows[i+1], x.subject).runs) == 0 {
					c.miss("%s/%s: not in %s.", where, x.subject, c.Names[i+1])
				}
			}
			for _, x := range rows[i+1] {
				if len(rowNamed(rows[0], x.subject).runs) == 0 {
					c.miss("%s/%s: only in %s.", where, x.subject, c.Names[i+1])
				}
			}
		}
		for _, first := range rows[0] {
			c.addRow(ComparedFigure{Scenario: name, Workload: w.Name, Subject: first.subject}, rows, only)
		}
	}
}

// addRow adds the figures of a subject that the first set and another one have, and says where
// it failed.
func (c *Comparison) addRow(of ComparedFigure, rows [][]row, only *regexp.Regexp) {
	where := strings.Join([]string{of.Scenario, of.Workload, of.Subject}, "/")
	had := false
	for _, f := range probe.Figures() {
		if f.Better == probe.Neither || only != nil && !only.MatchString(where+"/"+f.Name) {
			continue
		}
		one := of
		one.Figure = f
		for _, in := range rows {
			one.Values = append(one.Values, rowNamed(in, of.Subject).values(f.Name))
		}
		if len(one.Values[0]) == 0 {
			continue
		}
		had = true
		if slices.ContainsFunc(one.Values[1:], func(v []float64) bool { return len(v) > 0 }) {
			c.Figures = append(c.Figures, one)
		}
		for i, v := range one.Values {
			if len(v) == 0 && rowNamed(rows[i], of.Subject).complete() {
				c.miss("%s: no %s in %s.", where, f.Heading, c.Names[i])
			}
		}
	}
	if !had && only != nil {
		return
	}
	first := rowNamed(rows[0], of.Subject)
	before, _ := first.failures()
	for i := range rows {
		x := rowNamed(rows[i], of.Subject)
		n, why := x.failures()
		switch {
		case n > 0:
			text := fmt.Sprintf("%s failed in %d of %d rounds in %s: %s", where, n, len(x.runs), c.Names[i], why)
			c.Failed = append(c.Failed, text)
			if had && n*len(first.runs) > before*len(x.runs) {
				c.broken = append(c.broken, text)
			}
		case len(x.runs) > 0 && !x.complete():
			c.miss("%s: not run in %s: %s.", where, c.Names[i], strings.TrimSuffix(x.runs[0].Skipped, "."))
		}
	}
}

// The verdicts of a Difference.
const (
	Better    = "better"
	Worse     = "worse"
	Unchanged = "not significant"
	TooFew    = "too few rounds"
)

// Difference is how a figure of one set differs from that of the first.
type Difference struct {
	// Verdict is Better, Worse, Unchanged, or TooFew where it can't be told: by the rank
	// test, or with too few rounds for that by whether the medians are further apart than
	// both ± together.
	Verdict string
	// Change is what the median is more, as a part of the first: -0.1 is 10 % less. It is
	// infinite where the first is 0, or only one of them is the latency of no job.
	Change float64
	// P is how likely so much of a difference in ranks is without a cause.
	P float64
	// Why is what says whether the difference is significant, in words.
	Why string
}

// Against compares the figure in a set, by its place, with that in the first; false where one
// of them has none.
func (f *ComparedFigure) Against(i int) (d Difference, ok bool) {
	a, b := f.Values[0], f.Values[i]
	was, ok := stats.Median(a)
	is, ok2 := stats.Median(b)
	if !ok || !ok2 {
		return d, false
	}
	n, m := len(a), len(b)
	d = Difference{P: stats.Test(a, b), Change: (is - was) / math.Abs(was), Verdict: Unchanged}
	never := stats.IsNever(is) != stats.IsNever(was)
	left, known := stats.Margin(a)
	right, known2 := stats.Margin(b)
	apart := math.Abs(is-was) > left+right
	significant := false
	switch {
	case is == was:
		d.Change = 0
	case never:
		d.Change = math.Inf(1)
		if is < was {
			d.Change = math.Inf(-1)
		}
	}
	switch {
	case stats.CanTell(n, m):
		significant = d.P <= stats.Alpha
		d.Why = fmt.Sprintf("p=%.3f n=%d+%d", d.P, n, m)
	case never:
		significant = true
		d.Why = fmt.Sprintf("no job against some, n=%d+%d", n, m)
	case n < 2 || m < 2:
		d.Verdict = TooFew
		d.Why = fmt.Sprintf("need ≥ 2 rounds, better 4; n=%d+%d", n, m)
	case !known || !known2:
		d.Verdict = TooFew
		d.Why = fmt.Sprintf("no ± is known, need ≥ 4 rounds; n=%d+%d", n, m)
	case apart:
		significant = true
		d.Why = fmt.Sprintf("further apart than both ±, n=%d+%d", n, m)
	default:
		d.Why = fmt.Sprintf("within both ±, n=%d+%d", n, m)
	}
	if significant && is != was {
		d.Verdict = Worse
		if (is > was) == (f.Figure.Better == probe.Higher) {
			d.Verdict = Better
		}
	}
	return d, true
}

// change is the change in words.
func (d *Difference) change() string {
	if math.IsInf(d.Change, 0) || math.IsNaN(d.Change) {
		return "to or from nothing"
	}
	return fmt.Sprintf("%+.1f %%", d.Change*100)
}

// Undecided says of how many figures the verdict is TooFew, and how many are compared, each
// once a set.
func (c *Comparison) Undecided() (few, all int) {
	c.each(func(_ *ComparedFigure, _ int, d Difference) {
		all++
		if d.Verdict == TooFew {
			few++
		}
	})
	return few, all
}

// each calls do with each figure of each set but the first.
func (c *Comparison) each(do func(f *ComparedFigure, i int, d Difference)) {
	for i := range c.Figures {
		for j := range c.Sets[1:] {
			if d, ok := c.Figures[i].Against(j + 1); ok {
				do(&c.Figures[i], j+1, d)
			}
		}
	}
}

// Regressions are sentences on the subjects that failed in more of their rounds than in the
// first set, and on the figures that are significantly worse than there, by more than a part of
// that, such as 0.05.
func (c *Comparison) Regressions(bound float64) []string {
	all := slices.Clone(c.broken)
	c.each(func(f *ComparedFigure, i int, d Difference) {
		if d.Verdict == Worse && math.Abs(d.Change) > bound {
			all = append(all, fmt.Sprintf("%s/%s/%s: %s is worse in %s: %s, %s",
				f.Scenario, f.Workload, f.Subject, f.Figure.Heading, c.Names[i], d.change(), d.Why))
		}
	})
	return all
}
