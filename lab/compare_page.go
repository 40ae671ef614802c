package lab

import (
	"fmt"
	"slices"

	"github.com/myriad-go/myriad/internal/page"
)

const aboutComparison = "Medians over the rounds with ±, a confidence interval of 95 %; a change is that of the median. " +
	"p is that of the rank test of Mann and Whitney: ~ is a difference that is not significant (p > 0.05). " +
	"With too few rounds for that test, which needs 4 in each report, medians differ that are further apart than both ± together. " +
	"With fewer than 2, which have no ±, a figure is not judged."

// Page is the comparison for people.
func (c *Comparison) Page() page.Page {
	p := page.Page{Title: "Comparison", Lead: "What " + joined(c.Names) + " say of the same figures."}
	for i, b := range c.Books {
		fact := b.Date.UTC().Format("2006-01-02 15:04 MST") + "; " + b.Machine.String()
		if b.Version != "" {
			fact += "; Myriad " + b.Version
		}
		p.Facts = append(p.Facts, [2]string{c.Names[i], fact})
	}
	p.Sections = append(p.Sections, c.overview())
	used := newIDs("overview")
	for from := 0; from < len(c.Figures); {
		to := from
		for to < len(c.Figures) && c.Figures[to].Scenario == c.Figures[from].Scenario {
			to++
		}
		p.Sections = append(p.Sections, c.section(used, c.Figures[from:to]))
		from = to
	}
	return p
}

func (c *Comparison) overview() page.Section {
	s := page.Section{ID: "overview", Title: "Overview", Lead: aboutComparison}
	remarks := slices.Concat(bounded(page.Bad, c.Failed), bounded(page.Warn, c.Warnings), bounded(page.Faint, c.Missing))
	s.Parts = append(s.Parts, remarksPart(remarks)...)
	t := &page.Table{Caption: "How many figures are better or worse than in " + c.Names[0] + ".", Figures: true}
	verdicts := []string{verdictBetter, verdictWorse, verdictSame, verdictFew}
	t.Add(append([]string{"report"}, verdicts...)...)
	for i, name := range c.Names[1:] {
		counts := map[string]int{}
		for j := range c.Figures {
			if d, ok := c.Figures[j].Against(i + 1); ok {
				counts[d.Verdict()]++
			}
		}
		line := []string{name}
		for _, v := range verdicts {
			line = append(line, fmt.Sprint(counts[v]))
		}
		t.Add(line...)
	}
	s.Parts = append(s.Parts, page.Part{Table: t})
	return s
}

// section is a scenario, a table for each workload.
func (c *Comparison) section(used ids, all []ComparedFigure) page.Section {
	s := page.Section{ID: used.id(all[0].Scenario), Title: all[0].Scenario}
	for len(all) > 0 {
		n := slices.IndexFunc(all, func(f ComparedFigure) bool { return f.Workload != all[0].Workload })
		if n < 0 {
			n = len(all)
		}
		s.Parts = append(s.Parts, page.Part{Heading: all[0].Workload}, page.Part{Table: c.table(all[:n])})
		all = all[n:]
	}
	return s
}

func (c *Comparison) table(all []ComparedFigure) *page.Table {
	t := &page.Table{}
	head := []string{"subject, figure", c.Names[0], "±"}
	for _, name := range c.Names[1:] {
		head = append(head, name, "±", "change", "why")
	}
	t.Add(head...)
	for i := range all {
		f := &all[i]
		line := []string{f.Subject + ", " + f.Figure.Heading}
		tones := map[int]page.Tone{}
		for j, values := range f.Values {
			middle, spread := f.text(values)
			line = append(line, middle, spread)
			if j == 0 {
				continue
			}
			change, why, tone := f.verdict(j)
			tones[len(line)] = tone
			line = append(line, change, why)
		}
		t.Add(line...)
		for column, tone := range tones {
			t.SetTone(column, tone)
		}
	}
	return t
}

// text is a book's median and its ±.
func (f *ComparedFigure) text(values []float64) (middle, margin string) {
	v, ok := median(values)
	if !ok {
		return none, none
	}
	return f.Figure.say(v), around(values)
}

// verdict is the change, why it is one, and its tone.
func (f *ComparedFigure) verdict(i int) (change, why string, tone page.Tone) {
	d, ok := f.Against(i)
	if !ok {
		return none, "", page.Plain
	}
	why = d.why(len(f.Values[0]), len(f.Values[i]))
	switch {
	case d.Better():
		return d.change(), "better, " + why, page.Good
	case d.Worse():
		return d.change(), "worse, " + why, page.Bad
	}
	return "~", why, page.Plain
}
