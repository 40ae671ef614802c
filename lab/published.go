package lab

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Published is a table that others have published, beside which ours stands with the
// same columns.
type Published struct {
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
	Columns []PublishedColumn `json:"columns" toml:"column"`
	Rows    []PublishedRow    `json:"rows" toml:"rows"`
}

// PublishedColumn is a column of a published table.
type PublishedColumn struct {
	// Name is its heading, and Figure the name of ours that stands under it; "" where
	// there is none.
	Name   string `json:"name" toml:"name"`
	Figure string `json:"figure,omitempty" toml:"figure"`
	// Unit is that of the published figures, in which ours are written too: KiB, MiB,
	// GiB, MB, GB, kB/s or Mbps. "" is as ours are written elsewhere, which times are
	// always.
	Unit string `json:"unit,omitempty" toml:"unit"`
	// Relative names a subject: the figure is written as a multiple of that subject's in
	// the same round. Where there is none, or the watchdog has ended that subject, it is
	// written as it is.
	Relative string `json:"relative,omitempty" toml:"relative"`
}

// PublishedRow is a row of a published table.
type PublishedRow struct {
	// Name is what the row is about.
	Name string `json:"name" toml:"name"`
	// Count is how many there were of what Published.Count says; 0 is not known.
	Count int `json:"count,omitempty" toml:"count"`
	// Cells are the published figures, as they were written, one a column.
	Cells []string `json:"cells" toml:"cells"`
	// Workload is the one whose runs stand below it, Design the subject that is the
	// published design, and Ours those that answer it; all others are left out. Where
	// Ours is empty they are all subjects of the workload but the designs of the table.
	Workload string   `json:"workload" toml:"workload"`
	Design   string   `json:"design,omitempty" toml:"design"`
	Ours     []string `json:"ours,omitempty" toml:"ours"`
	// Else are workloads that stand in where Design or all of Ours have no figures under
	// Workload, or Design fewer connections: the first of them of which that is not so.
	Else []string `json:"else,omitempty" toml:"else"`
	// About names the figures by which ours is to be ahead of Design in the same run.
	About []string `json:"about,omitempty" toml:"about"`
}

// publishedUnits are the units of columns, in those of figures.
var publishedUnits = map[string]float64{
	"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "MB": 1e6, "GB": 1e9,
	"kB/s": 1e3, "Mbps": 1e6,
}

// check returns a ScenarioError where the table can't be one. Names of workloads and of
// subjects are checked by who knows them.
func (p *Published) check() error {
	for _, c := range p.Columns {
		if _, ok := figureNamed(c.Figure); c.Figure != "" && !ok {
			return wrong("published column %q: figure %q; expected one such as %q", c.Name, c.Figure, tps.Name)
		}
		if c.Unit != "" && publishedUnits[c.Unit] == 0 {
			return wrong("published column %q: unit %q; expected KiB, MiB, GiB, MB, GB, kB/s or Mbps", c.Name, c.Unit)
		}
	}
	for _, row := range p.Rows {
		if len(row.Cells) != len(p.Columns) {
			return wrong("published row %q has %d cells; expected one for each of %d columns", row.Name, len(row.Cells), len(p.Columns))
		}
		for _, name := range row.About {
			if f, ok := figureNamed(name); !ok || f.Better == Neither {
				return wrong("published row %q: about %q; expected a figure of which more or less is better, such as %q", row.Name, name, tps.Name)
			}
		}
	}
	return nil
}

// decided names the figures that rows are about, "" where none is about any.
func (p *Published) decided() string {
	var names []string
	for _, row := range p.Rows {
		for _, name := range row.About {
			if f, ok := figureNamed(name); ok && !slices.Contains(names, f.Heading) {
				names = append(names, f.Heading)
			}
		}
	}
	if len(names) == 0 {
		return ""
	}
	return " in " + joined(names)
}

// designs are the subjects that are published designs.
func (p *Published) designs() (names []string) {
	for _, row := range p.Rows {
		names = append(names, row.Design)
	}
	return names
}

// cell writes a figure of a row as the column has it.
func (c PublishedColumn) cell(rows []row, w row) string {
	f, ok := figureNamed(c.Figure)
	if !ok {
		return none
	}
	if base := rowOf(rows, c.Relative); c.Relative != "" && f.cutBy(base) == "" {
		if v, ok := f.ratio(w, base); ok {
			return threeDigits(v) + "×"
		}
	}
	v, ok := f.median(w)
	if !ok || v == never {
		return none
	}
	if unit := publishedUnits[c.Unit]; unit != 0 {
		return threeDigits(v/unit) + " " + c.Unit
	}
	return f.Text(v)
}

// threeDigits writes a value with three significant digits, or all that stand before the
// point.
func threeDigits(v float64) string {
	switch size := math.Abs(v); {
	case size >= 999.5:
		return thousands(v)
	case size >= 0.9995 || v == 0:
		return significant(v)
	}
	return fmt.Sprintf("%.3f", v)
}

// amount reads a published number, such as "202,830" or "994k".
func amount(cell string) (float64, bool) {
	text, unit := strings.ReplaceAll(cell, ",", ""), 1.0
	if rest, ok := strings.CutSuffix(text, "k"); ok {
		text, unit = rest, 1e3
	}
	v, err := strconv.ParseFloat(text, 64)
	return v * unit, err == nil
}

// loaded says, by Little's law, whether a published row had as many requests in flight as
// connections. It is false too where the table does not tell.
func (p *Published) loaded(row *PublishedRow) (inFlightCell string, off, known bool) {
	i := slices.IndexFunc(p.Columns, func(c PublishedColumn) bool { return c.Figure == inFlight.Name })
	if i < 0 || row.Count == 0 {
		return "", false, false
	}
	v, ok := amount(row.Cells[i])
	return row.Cells[i], math.Abs(v/float64(row.Count)-1) > littleTolerance, ok
}
