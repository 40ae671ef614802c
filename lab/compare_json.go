package lab

import (
	"io"
	"time"
)

// ComparisonFormat is what the JSON of a Comparison says that it is.
const ComparisonFormat = "myriad-comparison-1"

// comparisonJSON is a comparison for programs. A key that is there once keeps its meaning:
// docs/scenarios.md lists them.
type comparisonJSON struct {
	Format   string               `json:"format"`
	Reports  []comparedBookJSON   `json:"reports"`
	Warnings []string             `json:"warnings"`
	Missing  []string             `json:"missing"`
	Failed   []string             `json:"failed"`
	Broken   []string             `json:"broken"`
	Figures  []comparedFigureJSON `json:"figures"`
}

// comparedBookJSON is where the figures of a book come from.
type comparedBookJSON struct {
	Name    string    `json:"name"`
	Version string    `json:"version"`
	Machine Machine   `json:"machine"`
	Date    time.Time `json:"date"`
	Command string    `json:"command"`
	Scale   string    `json:"scale"`
}

// comparedFigureJSON is a figure of a subject under a workload.
type comparedFigureJSON struct {
	Scenario string `json:"scenario"`
	Workload string `json:"workload"`
	Subject  string `json:"subject"`
	Figure   string `json:"figure"`
	Heading  string `json:"heading"`
	Unit     string `json:"unit"`
	Better   string `json:"better"`
	// Values are in the order of the reports.
	Values []comparedValueJSON `json:"values"`
}

// comparedValueJSON is what a book says of a figure.
type comparedValueJSON struct {
	Rounds    int      `json:"rounds"`
	Median    *float64 `json:"median"`
	PlusMinus *float64 `json:"plus_minus"`
	// Change is nil in the first book, and where one of the two lacks the figure.
	Change *comparedChangeJSON `json:"change"`
}

// comparedChangeJSON is how a book differs from the first.
type comparedChangeJSON struct {
	Ratio   *float64 `json:"ratio"`
	P       float64  `json:"p"`
	Verdict string   `json:"verdict"`
	Why     string   `json:"why"`
}

// WriteJSON writes the comparison as one indented JSON object, whose format is
// ComparisonFormat.
//
// Its reports are the books in their order, each with name, version, machine (as in a Book),
// date, command and scale. warnings, missing, failed and broken are sentences: Warnings,
// Missing, Failed, and those of Failed that Regressions has too.
//
// Each of its figures has scenario, workload, subject, figure (its Name), heading, unit
// ("seconds", "bytes", "share" for parts of 1, or "" for a number of what the heading says),
// better ("lower" or "higher"), and values, in the order of the reports. A value has rounds
// (how many have the figure: 0 where the report lacks it), median, plus_minus, in the unit
// of the median, and change.
//
// change is against the first report: ratio is the median divided by the first one, p that
// of the rank test, verdict as Difference.Verdict has it, and why says in words what that
// stands on. It is null in the first report, and where one of both lacks the figure. median
// is null without rounds, and where it is the latency of no job, which is longer than any;
// plus_minus with fewer than 2 rounds or with such latencies; ratio where a median is null
// or the first one is not above 0.
func (c *Comparison) WriteJSON(w io.Writer) error {
	out := comparisonJSON{
		Format: ComparisonFormat, Warnings: listed(c.Warnings), Missing: listed(c.Missing),
		Failed: listed(c.Failed), Broken: listed(c.broken), Figures: []comparedFigureJSON{},
	}
	for i, b := range c.Books {
		out.Reports = append(out.Reports, comparedBookJSON{c.Names[i], b.Version, b.Machine, b.Date, b.Command, b.Scale})
	}
	for i := range c.Figures {
		out.Figures = append(out.Figures, c.Figures[i].json())
	}
	return writeJSON(w, out)
}

func (f *ComparedFigure) json() comparedFigureJSON {
	out := comparedFigureJSON{
		Scenario: f.Scenario, Workload: f.Workload, Subject: f.Subject,
		Figure: f.Figure.Name, Heading: f.Figure.Heading, Unit: string(f.Figure.Unit), Better: "lower",
	}
	if f.Figure.Better == Higher {
		out.Better = "higher"
	}
	for i, values := range f.Values {
		v := comparedValueJSON{Rounds: len(values), Median: number(median(values)), PlusMinus: number(margin(values))}
		if d, ok := f.Against(i); ok && i > 0 {
			v.Change = &comparedChangeJSON{P: d.P, Verdict: d.Verdict(), Why: d.why(len(f.Values[0]), len(values))}
			if first := out.Values[0].Median; first != nil && *first > 0 && v.Median != nil {
				v.Change.Ratio = number(*v.Median / *first, true)
			}
		}
		out.Values = append(out.Values, v)
	}
	return out
}

// number is a value, nil where there is none that can be written.
func number(v float64, ok bool) *float64 {
	if _, can := finite(v); !ok || !can {
		return nil
	}
	return &v
}

// listed is a list that is written as one when it is empty, too.
func listed(texts []string) []string { return append([]string{}, texts...) }
