package scenario

import (
	"slices"
	"strconv"
	"strings"
)

// ReferenceTable is a published table of figures. The report compares our own figures with it.
type ReferenceTable struct {
	// Title and Source identify the table. Machine describes the machine on which it was measured.
	Title   string `json:"title" toml:"title"`
	Source  string `json:"source" toml:"source"`
	Machine string `json:"machine" toml:"machine"`
	// Faults lists the known defects of the table, one sentence each.
	Faults []string `json:"faults,omitempty" toml:"faults"`
	// Notes contains hints for the comparison, one sentence each.
	Notes []string `json:"notes,omitempty" toml:"notes"`
	// Count is the unit of ReferenceRow.Count, such as "connections". "" means a table without counts.
	Count   string         `json:"count,omitempty" toml:"count"`
	Columns []Column       `json:"columns" toml:"column"`
	Rows    []ReferenceRow `json:"rows" toml:"rows"`
}

type Column struct {
	// Name is the heading of the column. Figure is our figure in the column, or "" if there is none.
	Name   string `json:"name" toml:"name"`
	Figure string `json:"figure,omitempty" toml:"figure"`
	// Unit is the unit of the published figures, a key of UnitFactors. Our figures are shown in the same unit. With ""
	// (the default, and for times), our figures have their usual format.
	Unit string `json:"unit,omitempty" toml:"unit"`
	// Relative is the name of a subject. If it is set, our figure is shown as a multiple of that subject's figure in
	// the same round. If the memory watchdog killed that subject, our figure itself is shown, too. If there is no
	// multiple, only our figure is shown.
	Relative string `json:"relative,omitempty" toml:"relative"`
}

// UnitFactors maps each unit that a published table can use to a factor. A published value times this factor is the
// value in our own unit, such as bytes.
var UnitFactors = map[string]float64{
	"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "MB": 1e6, "GB": 1e9,
	"kB/s": 1e3, "Mbps": 1e6,
}

type ReferenceRow struct {
	Name string `json:"name" toml:"name"`
	// Count is the size of the row, in the unit ReferenceTable.Count. 0 means unknown.
	Count int `json:"count,omitempty" toml:"count"`
	// Cells contains the published figures as written, one per column.
	Cells []string `json:"cells" toml:"cells"`
	// Workload is the workload whose runs are shown below the row. Design is the subject that reimplements the
	// published design. Ours lists the subjects to compare. By default, these are all subjects of the workload except
	// the table's designs.
	Workload string   `json:"workload" toml:"workload"`
	Design   string   `json:"design,omitempty" toml:"design"`
	Ours     []string `json:"ours,omitempty" toml:"ours"`
	// About lists the figures by which our subjects are compared with Design in the same round.
	About []string `json:"about,omitempty" toml:"about"`
}

// Claim states an upper or a lower limit for a figure. Exactly one of AtMost and AtLeast must be set.
type Claim struct {
	Text string `json:"text" toml:"text"`
	// Subjects lists the subjects to which the claim applies. Nil means all subjects of the workload.
	Subjects []string `json:"subjects,omitempty" toml:"subjects"`
	// Workload is the workload whose runs count. "" means each workload.
	Workload string `json:"workload,omitempty" toml:"workload"`
	// Figure is the name of the figure. AtMost and AtLeast are limits for it. If Of names a workload, the limits are
	// multiples of the same figure under that workload. Plus is added to the limit.
	Figure  string   `json:"figure" toml:"figure"`
	AtMost  *float64 `json:"at_most,omitempty" toml:"at_most"`
	AtLeast *float64 `json:"at_least,omitempty" toml:"at_least"`
	Of      string   `json:"of,omitempty" toml:"of"`
	Plus    float64  `json:"plus,omitempty" toml:"plus"`
	// From is the minimum number of connections for a verdict.
	From int `json:"from,omitempty" toml:"from"`
	// Fails defines when the claim makes the bench fail. With IfNotMet, the bench fails if the claim is not met. With
	// UnlessMet, it also fails if the figure was not measured. IfStrict means IfNotMet, but only with --strict. By
	// default, the claim never makes the bench fail.
	Fails string `json:"fails,omitempty" toml:"fails"`
}

const (
	UnlessMet = "unless met"
	IfNotMet  = "if not met"
	IfStrict  = "if strict"
)

// Clause is a clause of the first sentence of a report. Text can contain placeholders: {subject} is the name of the
// subject, and {value} is its figure. {baseline} is the name of the baseline, and {base} is its figure. {ratio} is
// value/base, and {inverse} is base/value. {connections} is the number of connections of the workload.
type Clause struct {
	Text     string `json:"text" toml:"text"`
	Workload string `json:"workload" toml:"workload"`
	Figure   string `json:"figure" toml:"figure"`
	// Subject is the clause's subject. "" means the previous clause's or, in the first clause, the best subject.
	Subject string `json:"subject,omitempty" toml:"subject"`
	// Baseline, if not "", replaces the scenario's baseline.
	Baseline string `json:"baseline,omitempty" toml:"baseline"`
}

// crossReferenceChecker checks that all names in a scenario refer to something that exists. It stores the first error.
type crossReferenceChecker struct {
	subjects, workloads []string
	figureInfo          func(figure string) (better, ok bool)      // Reader.Figures
	atLine              func(table string, i int, err error) error // adds the line of the i-th table of a kind to an error
	firstErr            error
}

func (r *crossReferenceChecker) storeFirstErrorf(table string, i int, text string, args ...any) {
	if r.firstErr == nil {
		r.firstErr = r.atLine(table, i, Errorf(text, args...))
	}
}

func (r *crossReferenceChecker) requireKnownNames(table string, i int, what string, known []string, names ...string) {
	for _, name := range names {
		if name != "" && !slices.Contains(known, name) {
			r.storeFirstErrorf(table, i, "%s %q; expected one of %s", what, name, JoinAsEnglishList(known))
		}
	}
}

// requireKnownFigures checks that figures exist. If needsDirection is set, it rejects figures of which neither higher
// nor lower values are better.
func (r *crossReferenceChecker) requireKnownFigures(table string, i int, needsDirection bool, names ...string) {
	for _, name := range names {
		if is, ok := r.figureInfo(name); name != "" && (!ok || needsDirection && !is) {
			r.storeFirstErrorf(table, i, "figure %q; expected one such as \"tps\"", name)
		}
	}
}

// checkCrossReferences checks that each name in the scenario refers to an existing subject, workload or figure.
// expanded is the scenario with all subjects that it would have on a machine without limits. figureInfo is
// Reader.Figures. atLine adds to an error the line number of a table.
func (s *Scenario) checkCrossReferences(expanded *Scenario, figureInfo func(string) (better, ok bool), atLine func(table string, i int, err error) error) error {
	r := &crossReferenceChecker{figureInfo: figureInfo, atLine: atLine}
	for _, x := range expanded.Subjects {
		r.subjects = append(r.subjects, x.Name)
	}
	for _, w := range s.Workloads {
		r.workloads = append(r.workloads, w.Name)
	}
	r.requireKnownNames("", 0, "baseline", r.subjects, s.Baseline)
	r.requireKnownNames("", 0, "auto", r.subjects, s.Auto)
	r.requireKnownFigures("", 0, true, s.Main)
	for i, x := range s.Subjects {
		r.requireKnownNames("subject", i, "subject "+x.Name+": workload", r.workloads, x.Workloads...)
	}
	for i := range s.References {
		r.checkReferenceTable(i, &s.References[i])
	}
	for i := range s.Claims {
		r.checkNamesAndBoundsOfClaim(i, &s.Claims[i])
	}
	for i, x := range s.Answer {
		r.requireKnownNames("answer", i, "workload", r.workloads, x.Workload)
		r.requireKnownNames("answer", i, "subject", r.subjects, x.Subject, x.Baseline)
		r.requireKnownFigures("answer", i, true, x.Figure)
	}
	for name, scale := range s.Scales {
		r.requireKnownNames("scale."+name, 0, "without", slices.Concat(r.subjects, r.workloads), scale.Without...)
	}
	return r.firstErr
}

func (r *crossReferenceChecker) checkReferenceTable(i int, p *ReferenceTable) {
	for _, x := range p.Columns {
		r.requireKnownFigures("published", i, false, x.Figure)
		r.requireKnownNames("published", i, "subject", r.subjects, x.Relative)
		if x.Unit != "" && UnitFactors[x.Unit] == 0 {
			r.storeFirstErrorf("published", i, "column %q: unit %q; expected KiB, MiB, GiB, MB, GB, kB/s or Mbps", x.Name, x.Unit)
		}
	}
	for _, row := range p.Rows {
		if len(row.Cells) != len(p.Columns) {
			r.storeFirstErrorf("published", i, "row %q: %d cells; expected one for each of %d columns", row.Name, len(row.Cells), len(p.Columns))
		}
		r.requireKnownNames("published", i, "workload", r.workloads, row.Workload)
		r.requireKnownNames("published", i, "subject", r.subjects, append([]string{row.Design}, row.Ours...)...)
		r.requireKnownFigures("published", i, true, row.About...)
	}
}

func (r *crossReferenceChecker) checkNamesAndBoundsOfClaim(i int, x *Claim) {
	r.requireKnownNames("claim", i, "subject", r.subjects, x.Subjects...)
	r.requireKnownNames("claim", i, "workload", r.workloads, x.Workload, x.Of)
	r.requireKnownFigures("claim", i, false, x.Figure)
	if !slices.Contains([]string{"", UnlessMet, IfNotMet, IfStrict}, x.Fails) {
		r.storeFirstErrorf("claim", i, "claim has fails = %q; expected %q, %q or %q", x.Fails, UnlessMet, IfNotMet, IfStrict)
	}
	if x.Figure == "" || (x.AtMost != nil) == (x.AtLeast != nil) {
		r.storeFirstErrorf("claim", i, "claim %q is incomplete; expected a figure with one of at_most and at_least", x.Text)
	}
}

// ParsePublishedCell parses a published figure, such as "202,830", "994k" or "4.9 MiB". If the text contains no unit,
// the figure has the unit of the column. inBaseUnit is the value in our own unit, such as bytes. isNumber is false if
// the text is not a number or its unit is unknown.
func (c Column) ParsePublishedCell(cell string) (inBaseUnit float64, isNumber bool) {
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
