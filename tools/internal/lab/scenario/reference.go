package scenario

import (
	"slices"
	"strconv"
	"strings"
)

// ReferenceTable is a table that others have published, beside which ours stands with the same
// columns.
type ReferenceTable struct {
	// Title and Source say whose it is, Machine on what it was measured.
	Title   string `json:"title" toml:"title"`
	Source  string `json:"source" toml:"source"`
	Machine string `json:"machine" toml:"machine"`
	// Faults are what is known to be wrong with it, a sentence each.
	Faults []string `json:"faults,omitempty" toml:"faults"`
	// Notes say what of ours is to be known when comparing, a sentence each.
	Notes []string `json:"notes,omitempty" toml:"notes"`
	// Count is what a row has so many of, such as "connections": a column of its own. ""
	// is none.
	Count string `json:"count,omitempty" toml:"count"`
	// Columns are its figures.
	Columns []Column       `json:"columns" toml:"column"`
	Rows    []ReferenceRow `json:"rows" toml:"rows"`
}

// Column is a column of a published table.
type Column struct {
	// Name is its heading, and Figure the name of ours that stands under it; "" where
	// there is none.
	Name   string `json:"name" toml:"name"`
	Figure string `json:"figure,omitempty" toml:"figure"`
	// Unit is that of the published figures, in which ours are written too: one of Units.
	// "" is as ours are written elsewhere, which times are always.
	Unit string `json:"unit,omitempty" toml:"unit"`
	// Relative names a subject: the figure is written as a multiple of that subject's in
	// the same round, and where the watchdog has ended that subject also as it is. Where
	// there is no multiple it is written as it is.
	Relative string `json:"relative,omitempty" toml:"relative"`
}

// UnitFactors are the units of columns, in those of figures.
var UnitFactors = map[string]float64{
	"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "MB": 1e6, "GB": 1e9,
	"kB/s": 1e3, "Mbps": 1e6,
}

// ReferenceRow is a row of a published table.
type ReferenceRow struct {
	// Name is what the row is about.
	Name string `json:"name" toml:"name"`
	// Count is how many there were of what Published.Count says; 0 is not known.
	Count int `json:"count,omitempty" toml:"count"`
	// Cells are the published figures, as they were written, one a column.
	Cells []string `json:"cells" toml:"cells"`
	// Workload is the one whose runs stand below it, Design the subject that is the
	// published design, and Ours those that answer it; all others are left out. Where Ours
	// is empty they are all subjects of the workload but the designs of the table.
	Workload string   `json:"workload" toml:"workload"`
	Design   string   `json:"design,omitempty" toml:"design"`
	Ours     []string `json:"ours,omitempty" toml:"ours"`
	// About names the figures by which ours is to be ahead of Design in the same run.
	About []string `json:"about,omitempty" toml:"about"`
}

// Claim is what the figures of subjects are held against. Either AtMost or AtLeast is set.
type Claim struct {
	// Text is the claim in words.
	Text string `json:"text" toml:"text"`
	// Subjects are those that it is claimed of; nil is all of the workload.
	Subjects []string `json:"subjects,omitempty" toml:"subjects"`
	// Workload is the one whose runs tell; "" is each.
	Workload string `json:"workload,omitempty" toml:"workload"`
	// Figure is the one that is claimed of, AtMost and AtLeast are its bounds. Where Of is
	// set they are multiples of the same figure under that workload. Plus is added to the
	// bound.
	Figure  string   `json:"figure" toml:"figure"`
	AtMost  *float64 `json:"at_most,omitempty" toml:"at_most"`
	AtLeast *float64 `json:"at_least,omitempty" toml:"at_least"`
	Of      string   `json:"of,omitempty" toml:"of"`
	Plus    float64  `json:"plus,omitempty" toml:"plus"`
	// From is the fewest connections of which it can be judged.
	From int `json:"from,omitempty" toml:"from"`
	// Fails says when the claim fails the bench: UnlessMet, also where it was not measured;
	// IfNotMet; or IfStrict, which is IfNotMet with --strict. Default: never.
	Fails string `json:"fails,omitempty" toml:"fails"`
}

// When a Claim fails the bench.
const (
	UnlessMet = "unless met"
	IfNotMet  = "if not met"
	IfStrict  = "if strict"
)

// Clause is a part of the sentence with which the report begins. In Text stand {subject} for
// the best subject that is not the baseline, {baseline}, {value} and {base} for their
// figures, {ratio} for the first divided by the second, {inverse} for the second divided by the
// first, and {connections} for those of the workload.
type Clause struct {
	Text     string `json:"text" toml:"text"`
	Workload string `json:"workload" toml:"workload"`
	Figure   string `json:"figure" toml:"figure"`
	// Subject is whose figure it is; "" is that of the clause before, of the first the best.
	Subject string `json:"subject,omitempty" toml:"subject"`
	// Baseline replaces the scenario's.
	Baseline string `json:"baseline,omitempty" toml:"baseline"`
}

// nameChecker checks the names that parts of a scenario have for others, and keeps the first
// error.
type nameChecker struct {
	subjects, workloads []string
	figureInfo          func(figure string) (better, ok bool)      // Reader.Figures
	atLine              func(table string, i int, err error) error // the line of a table
	firstErr            error
}

func (r *nameChecker) addErrorf(table string, i int, text string, args ...any) {
	if r.firstErr == nil {
		r.firstErr = r.atLine(table, i, Errorf(text, args...))
	}
}

func (r *nameChecker) checkNames(table string, i int, what string, known []string, names ...string) {
	for _, name := range names {
		if name != "" && !slices.Contains(known, name) {
			r.addErrorf(table, i, "%s %q; expected one of %s", what, name, JoinWords(known))
		}
	}
}

// checkFigures checks names of figures; with better, of those that are better higher or lower.
func (r *nameChecker) checkFigures(table string, i int, needsDirection bool, names ...string) {
	for _, name := range names {
		if is, ok := r.figureInfo(name); name != "" && (!ok || needsDirection && !is) {
			r.addErrorf(table, i, "figure %q; expected one such as \"tps\"", name)
		}
	}
}

// checkNames checks the names in published tables, claims and the answer. whole is the
// scenario on a machine on which everything can run, compared is Reader.Figures; at says on
// which line a table begins.
func (s *Scenario) checkNames(expanded *Scenario, figureInfo func(string) (better, ok bool), atLine func(table string, i int, err error) error) error {
	r := &nameChecker{figureInfo: figureInfo, atLine: atLine}
	for _, x := range expanded.Subjects {
		r.subjects = append(r.subjects, x.Name)
	}
	for _, w := range s.Workloads {
		r.workloads = append(r.workloads, w.Name)
	}
	r.checkNames("", 0, "baseline", r.subjects, s.Baseline)
	r.checkNames("", 0, "auto", r.subjects, s.Auto)
	r.checkFigures("", 0, true, s.Main)
	for i, x := range s.Subjects {
		r.checkNames("subject", i, "subject "+x.Name+": workload", r.workloads, x.Workloads...)
	}
	for i := range s.References {
		r.checkReferenceTable(i, &s.References[i])
	}
	for i := range s.Claims {
		r.checkClaim(i, &s.Claims[i])
	}
	for i, x := range s.Answer {
		r.checkNames("answer", i, "workload", r.workloads, x.Workload)
		r.checkNames("answer", i, "subject", r.subjects, x.Subject, x.Baseline)
		r.checkFigures("answer", i, true, x.Figure)
	}
	for name, scale := range s.Scales {
		r.checkNames("scale."+name, 0, "without", slices.Concat(r.subjects, r.workloads), scale.Without...)
	}
	return r.firstErr
}

func (r *nameChecker) checkReferenceTable(i int, p *ReferenceTable) {
	for _, x := range p.Columns {
		r.checkFigures("published", i, false, x.Figure)
		r.checkNames("published", i, "subject", r.subjects, x.Relative)
		if x.Unit != "" && UnitFactors[x.Unit] == 0 {
			r.addErrorf("published", i, "column %q: unit %q; expected KiB, MiB, GiB, MB, GB, kB/s or Mbps", x.Name, x.Unit)
		}
	}
	for _, row := range p.Rows {
		if len(row.Cells) != len(p.Columns) {
			r.addErrorf("published", i, "row %q: %d cells; expected one for each of %d columns", row.Name, len(row.Cells), len(p.Columns))
		}
		r.checkNames("published", i, "workload", r.workloads, row.Workload)
		r.checkNames("published", i, "subject", r.subjects, append([]string{row.Design}, row.Ours...)...)
		r.checkFigures("published", i, true, row.About...)
	}
}

func (r *nameChecker) checkClaim(i int, x *Claim) {
	r.checkNames("claim", i, "subject", r.subjects, x.Subjects...)
	r.checkNames("claim", i, "workload", r.workloads, x.Workload, x.Of)
	r.checkFigures("claim", i, false, x.Figure)
	if !slices.Contains([]string{"", UnlessMet, IfNotMet, IfStrict}, x.Fails) {
		r.addErrorf("claim", i, "claim fails %q; expected %q, %q or %q", x.Fails, UnlessMet, IfNotMet, IfStrict)
	}
	if x.Figure == "" || (x.AtMost != nil) == (x.AtLeast != nil) {
		r.addErrorf("claim", i, "claim %q; expected a figure with at_most or at_least", x.Text)
	}
}

// ParseCell reads a published cell, such as "202,830", "4.9 s" or "38.8" under a column in MiB, in
// the unit of the column's figure.
func (c Column) ParseCell(cell string) (float64, bool) {
	digits, unit, _ := strings.Cut(cell, " ")
	digits, scale := strings.ReplaceAll(digits, ",", ""), 1.0
	if rest, ok := strings.CutSuffix(digits, "k"); ok {
		digits, scale = rest, 1e3
	}
	v, err := strconv.ParseFloat(digits, 64)
	factor, ok := UnitFactors[unit]
	switch {
	case ok:
		scale *= factor
	case unit != "":
		return 0, false
	case c.Unit != "":
		scale *= UnitFactors[c.Unit]
	}
	return v * scale, err == nil
}
