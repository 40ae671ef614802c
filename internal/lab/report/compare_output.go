package report

import (
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/myriad-go/myriad/internal/lab/probe"
	"github.com/myriad-go/myriad/internal/lab/result"
	"github.com/myriad-go/myriad/internal/lab/scenario"
	"github.com/myriad-go/myriad/internal/lab/stats"
	"github.com/myriad-go/myriad/internal/page"
)

// Page is the comparison for people.
func (c *Comparison) Page() page.Page {
	p := page.Page{Title: "Comparison", Lead: "What " + scenario.Join(c.Names) + " say of the same figures."}
	for i, s := range c.Sets {
		fact := s.Date.UTC().Format("2006-01-02 15:04 MST") + "; " + s.Machine.String()
		if s.Version != "" {
			fact += "; Myriad " + s.Version
		}
		p.Facts = append(p.Facts, [2]string{c.Names[i], fact})
	}
	p.Sections = append(p.Sections, c.overview())
	used := ids{"overview": true}
	for rest := c.Figures; len(rest) > 0; {
		name := rest[0].Scenario
		s := page.Section{ID: used.id(name), Title: name}
		for len(rest) > 0 && rest[0].Scenario == name {
			n := slices.IndexFunc(rest, func(f ComparedFigure) bool { return f.Scenario != name || f.Workload != rest[0].Workload })
			if n < 0 {
				n = len(rest)
			}
			s.Parts = append(s.Parts, page.Part{Heading: rest[0].Workload}, page.Part{Table: c.table(rest[:n])})
			rest = rest[n:]
		}
		p.Sections = append(p.Sections, s)
	}
	return p
}

func (c *Comparison) overview() page.Section {
	s := page.Section{ID: "overview", Title: "Overview", Lead: "Medians over the rounds with ±, a confidence interval of 95 %; a change is that of the median. " +
		"p is that of the rank test of Mann and Whitney: ~ is a difference that is not significant (p > 0.05). " +
		"With too few rounds for that test, which needs 4 in each report, medians differ that are further apart than both ± together. " +
		"With fewer than 2, which have no ±, a figure is not judged."}
	s.Parts = append(s.Parts, remarks("", slices.Concat(bounded(page.Bad, c.Failed), bounded(page.Warn, c.Warnings), bounded(page.Faint, c.Missing)))...)
	t := &page.Table{Caption: "How many figures are better or worse than in " + c.Names[0] + ".", Figures: true}
	verdicts := []string{Better, Worse, Unchanged, TooFew}
	t.Add(append([]string{"report"}, verdicts...)...)
	counts := make(map[int]map[string]int)
	c.each(func(_ *ComparedFigure, i int, d Difference) {
		if counts[i] == nil {
			counts[i] = make(map[string]int)
		}
		counts[i][d.Verdict]++
	})
	for i, name := range c.Names[1:] {
		line := []string{name}
		for _, v := range verdicts {
			line = append(line, fmt.Sprint(counts[i+1][v]))
		}
		t.Add(line...)
	}
	s.Parts = append(s.Parts, page.Part{Table: t})
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
			middle := probe.None
			if v, ok := stats.Median(values); ok {
				middle = f.Figure.Text(v)
			}
			line = append(line, middle, around(values))
			if j == 0 {
				continue
			}
			d, ok := f.Against(j)
			switch {
			case !ok:
				line = append(line, probe.None, "")
			case d.Verdict == Better || d.Verdict == Worse:
				tones[len(line)] = map[string]page.Tone{Better: page.Good, Worse: page.Bad}[d.Verdict]
				line = append(line, d.change(), d.Verdict+", "+d.Why)
			default:
				line = append(line, "~", d.Why)
			}
		}
		t.Add(line...)
		for column, tone := range tones {
			t.SetTone(column, tone)
		}
	}
	return t
}

// ComparisonFormat is what the JSON of a Comparison says that it is.
const ComparisonFormat = "myriad-comparison-1"

// comparisonJSON is a comparison for programs. docs/scenarios.md lists its keys.
type comparisonJSON struct {
	Format   string               `json:"format"`
	Reports  []comparedSetJSON    `json:"reports"`
	Warnings []string             `json:"warnings"`
	Missing  []string             `json:"missing"`
	Failed   []string             `json:"failed"`
	Broken   []string             `json:"broken"`
	Figures  []comparedFigureJSON `json:"figures"`
}

type comparedSetJSON struct {
	Name    string         `json:"name"`
	Version string         `json:"version"`
	Machine result.Machine `json:"machine"`
	Date    time.Time      `json:"date"`
	Command string         `json:"command"`
	Scale   string         `json:"scale"`
}

type comparedFigureJSON struct {
	Scenario string              `json:"scenario"`
	Workload string              `json:"workload"`
	Subject  string              `json:"subject"`
	Figure   string              `json:"figure"`
	Heading  string              `json:"heading"`
	Unit     string              `json:"unit"`
	Better   string              `json:"better"`
	Values   []comparedValueJSON `json:"values"`
}

type comparedValueJSON struct {
	Rounds    int                 `json:"rounds"`
	Median    *float64            `json:"median"`
	PlusMinus *float64            `json:"plus_minus"`
	Change    *comparedChangeJSON `json:"change"`
}

type comparedChangeJSON struct {
	Ratio   *float64 `json:"ratio"`
	P       float64  `json:"p"`
	Verdict string   `json:"verdict"`
	Why     string   `json:"why"`
}

// WriteJSON writes the comparison as one indented JSON object, whose format is
// ComparisonFormat. Reports, and the values of each figure, are in the order of the sets. The
// change is against the first, and null there and where one of both lacks the figure; median
// is null without rounds, and where it is the latency of no job; plus_minus with fewer than 2
// rounds; ratio where a median is null or the first one is not above 0.
func (c *Comparison) WriteJSON(w io.Writer) error {
	list := func(texts []string) []string { return append([]string{}, texts...) }
	out := comparisonJSON{
		Format: ComparisonFormat, Warnings: list(c.Warnings), Missing: list(c.Missing),
		Failed: list(c.Failed), Broken: list(c.broken), Figures: []comparedFigureJSON{},
	}
	for i, s := range c.Sets {
		out.Reports = append(out.Reports, comparedSetJSON{c.Names[i], s.Version, s.Machine, s.Date, s.Command, s.Scale})
	}
	for i := range c.Figures {
		out.Figures = append(out.Figures, c.Figures[i].json())
	}
	return result.WriteJSON(w, out)
}

func (f *ComparedFigure) json() comparedFigureJSON {
	better := map[probe.Better]string{probe.Lower: "lower", probe.Higher: "higher"}[f.Figure.Better]
	out := comparedFigureJSON{
		Scenario: f.Scenario, Workload: f.Workload, Subject: f.Subject,
		Figure: f.Figure.Name, Heading: f.Figure.Heading, Unit: string(f.Figure.Unit), Better: better,
	}
	for i, values := range f.Values {
		v := comparedValueJSON{Rounds: len(values), Median: finite(stats.Median(values)), PlusMinus: finite(stats.Margin(values))}
		if d, ok := f.Against(i); ok && i > 0 {
			v.Change = &comparedChangeJSON{P: d.P, Verdict: d.Verdict, Why: d.Why}
			if first := out.Values[0].Median; first != nil && *first > 0 && v.Median != nil {
				v.Change.Ratio = finite(*v.Median / *first, true)
			}
		}
		out.Values = append(out.Values, v)
	}
	return out
}

// finite is a value, nil where there is none that can be written.
func finite(v float64, ok bool) *float64 {
	if !ok || stats.IsNever(v) || math.IsInf(v, 0) || math.IsNaN(v) {
		return nil
	}
	return &v
}
