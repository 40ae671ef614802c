package lab

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

const (
	// maxCompared bounds the books of a comparison.
	maxCompared = 16
	// alpha is from when on a difference is significant: once in twenty it is called so
	// where there is none.
	alpha = 0.05
)

// Comparison is what books say of the same figures. Each of the others is compared with
// the first.
type Comparison struct {
	// Names are what the books are called, in order.
	Names []string
	// Books are those that are compared.
	Books []*Book
	// Warnings say what is not alike in the books, so that a difference of figures may
	// come of that.
	Warnings []string
	// Missing are sentences on what is in some of the books only.
	Missing []string
	// Failed are sentences on subjects of which runs have failed, in any of the books.
	Failed []string
	// Figures are those that are better when they are lower, or when they are higher, in
	// the first book's order.
	Figures []ComparedFigure
	// broken are those of Failed that failed in more of their rounds than in the first
	// book, where they had figures.
	broken []string
}

// ComparedFigure is a figure of a subject under a workload, in each book.
type ComparedFigure struct {
	Scenario, Workload, Subject string
	Figure                      Figure
	// Values are those of the rounds, by book; none where the book lacks it.
	Values [][]float64
}

// Compare compares books, 2 to 16, by what they are called. Where only is set, it keeps the
// figures whose "scenario/workload/subject/figure" it matches. It fails with a
// ScenarioError when nothing is left.
func Compare(names []string, books []*Book, only *regexp.Regexp) (*Comparison, error) {
	if len(books) < 2 || len(books) > maxCompared || len(names) != len(books) {
		return nil, wrong("%d reports with %d names; expected 2 to %d, and a name for each", len(books), len(names), maxCompared)
	}
	c := &Comparison{Names: names, Books: books}
	for i := range books[1:] {
		c.warn(i + 1)
	}
	for _, r := range books[0].Reports {
		c.add(r, only)
	}
	for i, b := range books[1:] {
		for _, r := range b.Reports {
			if books[0].report(r.Scenario.Name) == nil {
				c.miss("%s: only in %s.", r.Scenario.Name, names[i+1])
			}
		}
	}
	if len(c.Figures)+len(c.broken) > 0 {
		return c, nil
	}
	if only != nil {
		return nil, wrong("%q matches no figure that the reports have in common; expected to match a SCENARIO/WORKLOAD/SUBJECT/FIGURE such as \"quick/echo-100/net/tps\"", only)
	}
	return nil, wrong("%s have no figure in common; expected reports of the same scenarios", joined(names))
}

// report finds the report of a scenario, nil where there is none.
func (b *Book) report(scenario string) *Report {
	for _, r := range b.Reports {
		if r.Scenario.Name == scenario {
			return r
		}
	}
	return nil
}

// workload finds a workload by its name, nil where there is none.
func (s *Scenario) workload(name string) *Workload {
	for i := range s.Workloads {
		if s.Workloads[i].Name == name {
			return &s.Workloads[i]
		}
	}
	return nil
}

// subject finds a subject by its name, nil where there is none.
func (s *Scenario) subject(name string) *Subject {
	for i := range s.Subjects {
		if s.Subjects[i].Name == name {
			return &s.Subjects[i]
		}
	}
	return nil
}

func (c *Comparison) miss(format string, args ...any) {
	c.Missing = append(c.Missing, fmt.Sprintf(format, args...))
}

// warn says how a book differs from the first.
func (c *Comparison) warn(i int) {
	a, b := c.Books[0], c.Books[i]
	differ := func(what, first, other string) {
		if first != other {
			c.Warnings = append(c.Warnings, fmt.Sprintf("Another %s: %s has %s, %s has %s.",
				what, c.Names[0], orUnknown(first), c.Names[i], orUnknown(other)))
		}
	}
	differ("machine", a.Machine.hardware(), b.Machine.hardware())
	differ("kernel", a.Machine.Kernel, b.Machine.Kernel)
	differ("version of Go", a.Machine.Go, b.Machine.Go)
	differ("version of Myriad", a.Version, b.Version)
	differ("scale", a.Scale, b.Scale)
	for _, r := range a.Reports {
		other := b.report(r.Scenario.Name)
		if other == nil {
			continue
		}
		differ("pinning of "+r.Scenario.Name, fmt.Sprint(r.Pinning), fmt.Sprint(other.Pinning))
		for _, s := range r.Scenario.Subjects {
			name := r.Scenario.Name + "/" + s.Name
			if o := other.Scenario.subject(s.Name); o != nil {
				differ("command of "+name, strings.Join(s.Command, " "), strings.Join(o.Command, " "))
				differ("number of connections for each process of "+name, fmt.Sprint(s.PerProcess), fmt.Sprint(o.PerProcess))
				differ("most connections of "+name, fmt.Sprint(s.MaxConns), fmt.Sprint(o.MaxConns))
			}
		}
		for _, w := range r.Scenario.Workloads {
			if o := other.Scenario.workload(w.Name); o != nil && !sameWorkload(w, *o) {
				c.Warnings = append(c.Warnings, fmt.Sprintf("%s/%s is not the same workload in %s and %s.",
					r.Scenario.Name, w.Name, c.Names[0], c.Names[i]))
			}
		}
	}
}

// hardware is what of a machine no update changes. Memory is in whole GiB: a kernel has
// some of it for itself.
func (m Machine) hardware() string {
	return strings.Join(strings.Fields(fmt.Sprintf("%s %s, %s, %d CPUs, %.0f GiB", m.OS, m.Arch, m.CPU, m.CPUs, float64(m.Memory)/(1<<30))), " ")
}

func orUnknown(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

// sameWorkload says whether two workloads ask the same.
func sameWorkload(a, b Workload) bool {
	a.Caption, b.Caption = "", ""
	return reflect.DeepEqual(a, b)
}

// add adds what the first book's report has in common with another one's.
func (c *Comparison) add(r *Report, only *regexp.Regexp) {
	name := r.Scenario.Name
	others := make([]*Report, len(c.Books))
	found := false
	for i, b := range c.Books {
		others[i] = b.report(name)
		found = found || i > 0 && others[i] != nil
	}
	if !found {
		c.miss("%s: only in %s.", name, c.Names[0])
		return
	}
	for _, w := range r.Scenario.Workloads {
		rows := make([][]row, len(c.Books))
		for i, o := range others {
			if o != nil {
				rows[i] = o.rows(w.Name)
			}
		}
		c.missRows(name+"/"+w.Name, rows)
		for _, first := range rows[0] {
			c.addRow(ComparedFigure{Scenario: name, Workload: w.Name, Subject: first.subject}, rows, only)
		}
	}
}

// missRows says which subjects are in some of the books only.
func (c *Comparison) missRows(where string, rows [][]row) {
	for i := range rows[1:] {
		for _, w := range rows[0] {
			if len(rowOf(rows[i+1], w.subject).runs) == 0 {
				c.miss("%s/%s: not in %s.", where, w.subject, c.Names[i+1])
			}
		}
		for _, w := range rows[i+1] {
			if len(rowOf(rows[0], w.subject).runs) == 0 {
				c.miss("%s/%s: only in %s.", where, w.subject, c.Names[i+1])
			}
		}
	}
}

// addRow adds the figures of a subject that the first book and another one have, and says
// where it failed.
func (c *Comparison) addRow(of ComparedFigure, rows [][]row, only *regexp.Regexp) {
	where := strings.Join([]string{of.Scenario, of.Workload, of.Subject}, "/")
	had := false
	defer func() {
		if had || only == nil {
			c.fail(where, of.Subject, rows, had)
		}
	}()
	for _, f := range figures {
		if f.Better == Neither || only != nil && !only.MatchString(where+"/"+f.Name) {
			continue
		}
		one := of
		one.Figure = f
		for _, of := range rows {
			one.Values = append(one.Values, f.values(rowOf(of, one.Subject)))
		}
		if len(one.Values[0]) == 0 {
			continue
		}
		had = true
		if slices.ContainsFunc(one.Values[1:], func(v []float64) bool { return len(v) > 0 }) {
			c.Figures = append(c.Figures, one)
		}
		for i, v := range one.Values {
			if len(v) == 0 && rowOf(rows[i], of.Subject).counts() {
				c.miss("%s: no %s in %s.", where, f.Heading, c.Names[i])
			}
		}
	}
}

// counts says whether any run of the row came to its end.
func (w row) counts() bool {
	return slices.ContainsFunc(w.runs, func(run *RunRecord) bool { return run.Error == "" && run.Skipped == "" })
}

// failures counts the runs that failed, and says why the first of them did.
func (w row) failures() (n int, why string) {
	for _, run := range w.runs {
		if run.failed() {
			n, why = n+1, cmp.Or(why, run.failure())
		}
	}
	return n, why
}

// fail says in which books a subject failed or was not run, and notes where it is worse
// than in the first, in which it had figures.
func (c *Comparison) fail(where, subject string, rows [][]row, had bool) {
	first := rowOf(rows[0], subject)
	before, _ := first.failures()
	for i := range rows {
		w := rowOf(rows[i], subject)
		n, why := w.failures()
		if n == 0 {
			if len(w.runs) > 0 && !w.counts() {
				c.miss("%s: not run in %s: %s.", where, c.Names[i], strings.TrimSuffix(w.runs[0].Skipped, "."))
			}
			continue
		}
		text := fmt.Sprintf("%s failed in %d of %d rounds in %s: %s", where, n, len(w.runs), c.Names[i], why)
		c.Failed = append(c.Failed, text)
		if had && n*len(first.runs) > before*len(w.runs) {
			c.broken = append(c.broken, text)
		}
	}
}

// Undecided says of how many figures the verdict is that there are too few rounds, and how
// many are compared, each once a book.
func (c *Comparison) Undecided() (few, all int) {
	for i := range c.Figures {
		for j := range c.Books[1:] {
			d, ok := c.Figures[i].Against(j + 1)
			if !ok {
				continue
			}
			all++
			if d.Few {
				few++
			}
		}
	}
	return few, all
}

// Regressions are sentences on the subjects that failed in more of their rounds than in the
// first book, and on the figures that are significantly worse than there, by more than a
// part of that, such as 0.05.
func (c *Comparison) Regressions(bound float64) []string {
	found := slices.Clone(c.broken)
	for i := range c.Figures {
		f := &c.Figures[i]
		for j := range f.Values[1:] {
			d, ok := f.Against(j + 1)
			if ok && d.Worse() && math.Abs(d.Change) > bound {
				found = append(found, fmt.Sprintf("%s/%s/%s: %s is worse in %s: %s, %s",
					f.Scenario, f.Workload, f.Subject, f.Figure.Heading, c.Names[j+1], d.change(), d.why(len(f.Values[0]), len(f.Values[j+1]))))
			}
		}
	}
	return found
}
