package lab

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/myriad-go/myriad/internal/page"
)

// publishedParts are a published table with ours in it, what is wrong with it, and how
// ours stand beside the published designs.
func (r *Report) publishedParts(p *Published) []page.Part {
	b := &besides{report: r, published: p, table: &page.Table{
		Caption: "Below each published row stand its design and ours as they were measured here, in the same run: medians over the rounds. " +
			"Ahead is the median of each round's ratio to the design" + p.decided() + ", above 1 where ours is ahead.",
	}}
	head := []string{"row"}
	if p.Count != "" {
		head = append(head, p.Count)
	}
	for _, c := range p.Columns {
		if c.Unit != "" {
			c.Name += ", " + c.Unit
		}
		head = append(head, c.Name)
	}
	b.table.Add(append(head, "marks", "ahead")...)
	for i := range p.Rows {
		b.row(&p.Rows[i])
	}
	text := "Published by " + p.Source + "."
	if p.Machine != "" {
		text += " Measured there on " + p.Machine + "."
	}
	parts := []page.Part{{Heading: "Published: " + p.Title}, {Text: text}, {Table: b.table}}
	parts = append(parts, remarksPart(b.remarks())...)
	return append(parts, remarksPart(b.verdict())...)
}

// besides puts ours beside a published table.
type besides struct {
	report    *Report
	published *Published
	table     *page.Table
	standings []standings
	little    []page.Remark // where connections were not loaded
	missing   []page.Remark // published rows of which nothing was run
}

// row adds a published row and those of ours.
func (b *besides) row(p *PublishedRow) {
	b.publishedLine(p)
	w, rows := b.report.workloadOf(p)
	if len(rows) == 0 {
		b.miss(p, "no run of "+p.Workload+" was made")
		return
	}
	design := rowOf(rows, p.Design)
	if len(design.runs) > 0 {
		b.line("its design here: "+p.Design, p, w, rows, design, nil)
	}
	before := len(b.standings)
	for _, ours := range b.report.ours(b.published, p, rows) {
		all := b.stand(p, w, ours, design)
		b.line("ours: "+ours.subject, p, w, rows, ours, all)
		if len(all) > 0 {
			b.standings = append(b.standings, all)
		}
	}
	if len(p.About) > 0 && len(b.standings) == before {
		b.miss(p, "none of ours was run beside a design under "+w.Name)
	}
}

// miss notes that nothing of ours is to be compared with a published row.
func (b *besides) miss(p *PublishedRow, why string) {
	b.missing = append(b.missing, page.Remark{Tone: page.Warn, Text: p.Name + ": not measured: " + why + "."})
}

// publishedLine adds the row as it was published.
func (b *besides) publishedLine(p *PublishedRow) {
	line := []string{"published: " + p.Name}
	if b.published.Count != "" {
		line = append(line, orNone(float64(p.Count)))
	}
	line = append(line, p.Cells...)
	mark := ""
	cell, off, known := b.published.loaded(p)
	if known && off {
		mark = "never loaded"
		b.little = append(b.little, page.Remark{Tone: page.Warn, Text: fmt.Sprintf(
			"%s, as published: by Little's law %s requests were in flight, which is not the %s connections that it was to have.",
			p.Name, cell, thousands(float64(p.Count)))})
	}
	b.table.Add(append(line, mark, "")...)
	for i := range line {
		b.table.SetTone(i, page.Faint)
	}
	if mark != "" {
		b.table.SetTone(len(line), page.Warn)
	}
}

// line adds what was measured of a subject.
func (b *besides) line(name string, p *PublishedRow, w Workload, rows []row, x row, all standings) {
	line := []string{name}
	if b.published.Count != "" {
		line = append(line, orNone(float64(b.report.held(w, x.subject))))
	}
	warn := -1
	for _, c := range b.published.Columns {
		if c.Figure == inFlight.Name && x.unloaded() {
			warn = len(line)
		}
		text := c.cell(rows, x)
		if f, ok := figureNamed(c.Figure); ok && c.Relative == "" && slices.Contains(p.About, c.Figure) {
			switch s := x.spread(f); {
			case s == none:
			case strings.HasPrefix(s, "±"):
				text += " " + s
			default:
				text += " (" + s + ")"
			}
		}
		line = append(line, text)
	}
	addMarked(b.table, x, line...)
	b.table.Lines[len(b.table.Lines)-1] = append(b.table.Lines[len(b.table.Lines)-1], all.leads())
	if warn >= 0 {
		b.table.SetTone(warn, page.Warn)
	}
	if len(all) > 0 {
		b.table.SetTone(len(line)+1, outcomeTones[all.outcome()])
	}
}

// unloaded says whether, by Little's law, the connections were not all loaded.
func (w row) unloaded() bool {
	v, ok := inFlight.median(w)
	expected, ok2 := expectedInFlight.median(w)
	return ok && ok2 && math.Abs(v/expected-1) > littleTolerance
}

// stand compares a row of ours with that of the design by each figure that the published
// row is about. Without a design there is nothing to compare.
func (b *besides) stand(p *PublishedRow, w Workload, ours, design row) (all standings) {
	if p.Design == "" {
		return nil
	}
	design.subject = p.Design
	for _, name := range p.About {
		f, ok := figureNamed(name)
		if !ok {
			continue
		}
		s := stand(f, ours, design)
		s.row, s.workload = p, w.Name
		us, them := b.report.held(w, ours.subject), b.report.held(w, p.Design)
		switch {
		case us != them:
			s.at = fmt.Sprintf("with %s against %s %s", thousands(float64(us)), thousands(float64(them)), b.published.Count)
		case p.Count > 0 && us != p.Count:
			s.at = fmt.Sprintf("with %s %s instead of %s", thousands(float64(us)), b.published.Count, thousands(float64(p.Count)))
		}
		all = append(all, s)
	}
	return all
}

// remarks are what is to be known of the published table.
func (b *besides) remarks() (all []page.Remark) {
	for _, text := range b.published.Faults {
		all = append(all, page.Remark{Text: "Known fault of what is published: " + text})
	}
	for _, text := range b.published.Notes {
		all = append(all, page.Remark{Text: text})
	}
	return append(all, b.little...)
}

// verdict says how ours stand.
func (b *besides) verdict() (all []page.Remark) {
	if len(b.standings) > 0 {
		all = append(all, tallied(b.standings, len(b.missing)))
	}
	for _, s := range slices.Concat(b.standings...) {
		all = append(all, page.Remark{Tone: s.tone(), Text: s.String()})
	}
	return append(all, b.missing...)
}

// workloadOf finds the workload whose runs stand below a published row. Of those that the
// row names it is the first under which the design and one of ours have figures, and the
// design all the connections; otherwise the first under which both have figures, or else
// the first with runs.
func (r *Report) workloadOf(p *PublishedRow) (found Workload, rows []row) {
	best := 0
	for _, name := range append([]string{p.Workload}, p.Else...) {
		i := slices.IndexFunc(r.Scenario.Workloads, func(w Workload) bool { return w.Name == name })
		if i < 0 {
			continue
		}
		w, here := r.Scenario.Workloads[i], r.rows(name)
		if fits := r.fits(p, w, here); fits > best {
			best, found, rows = fits, w, here
		}
	}
	return found, rows
}

// fits says how well a workload fits a published row: the more the better, and 0 is not
// at all.
func (r *Report) fits(p *PublishedRow, w Workload, rows []row) int {
	both := has(rows, func(x row) bool { return p.Design == "" || x.subject == p.Design }) &&
		(len(p.Ours) == 0 || has(rows, func(x row) bool { return slices.Contains(p.Ours, x.subject) }))
	switch {
	case len(rows) == 0:
		return 0
	case !both:
		return 1
	case r.held(w, p.Design) < w.Connections:
		return 2
	}
	return 3
}

// has says whether a row that is one of those has a run that counts.
func has(rows []row, one func(row) bool) bool {
	return slices.ContainsFunc(rows, func(x row) bool {
		return one(x) && x.counts()
	})
}

// ours are the rows that answer a published one.
func (r *Report) ours(p *Published, answered *PublishedRow, rows []row) []row {
	designs := p.designs()
	return slices.DeleteFunc(slices.Clone(rows), func(x row) bool {
		if len(answered.Ours) > 0 {
			return !slices.Contains(answered.Ours, x.subject)
		}
		return slices.Contains(designs, x.subject)
	})
}

// held is how many connections a subject had under a workload.
func (r *Report) held(w Workload, subject string) int {
	i := slices.IndexFunc(r.Scenario.Subjects, func(s Subject) bool { return s.Name == subject })
	if i < 0 {
		return w.Connections
	}
	return w.heldBy(r.Scenario.Subjects[i].MaxConns).Connections
}
