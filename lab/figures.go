package lab

import (
	"maps"
	"slices"

	"github.com/myriad-go/myriad/internal/page"
)

// Figure is something that is read off a run: one number. All that shows figures has
// them from the list in figures_list.go: how one is called, written and compared is
// said there, once.
type Figure struct {
	// Name is what a scenario calls it, such as "tps". Heading stands above a column.
	Name, Heading string
	// Unit is what its values are: seconds, bytes, parts of 1, or a number of what the
	// heading says.
	Unit page.Unit
	// Better says whether more of it is better.
	Better Better
	// write is how it is written where the unit alone does not say.
	write func(float64) string
	// read reads it off a run, and says false where the run has none.
	read reading
}

// Better says which way a figure is better.
type Better int8

// The ways.
const (
	Lower   Better = -1
	Neither Better = 0
	Higher  Better = 1
)

// figureNamed finds a figure by its name.
func figureNamed(name string) (Figure, bool) {
	i := slices.IndexFunc(figures, func(f Figure) bool { return f.Name == name })
	if i < 0 {
		return Figure{}, false
	}
	return figures[i], true
}

// Text writes a value.
func (f Figure) Text(v float64) string {
	switch {
	case v == never:
		return none
	case f.write != nil:
		return f.write(v)
	case f.Unit == page.Seconds:
		return latency(v * 1e9)
	case f.Unit == page.Share:
		return percent(v)
	}
	return thousands(v)
}

// of reads the figure off a run whose figures count: one that has failed, was not made,
// or was made again has none.
func (f Figure) of(r *RunRecord) (float64, bool) {
	if r.Error != "" || r.Skipped != "" || r.Superseded {
		return 0, false
	}
	return f.read(r)
}

// values are its values over the rounds of a row that have it, in no order.
func (f Figure) values(w row) []float64 { return slices.Collect(maps.Values(f.byRound(w))) }

func (f Figure) byRound(w row) map[int]float64 {
	found := make(map[int]float64)
	for _, run := range w.runs {
		if v, ok := f.of(run); ok {
			found[run.Round] = v
		}
	}
	return found
}

// median is that over the rounds of a row.
func (f Figure) median(w row) (float64, bool) { return median(f.values(w)) }

// ratio is the median over the rounds of the figure's ratio to the base's in the same
// round.
func (f Figure) ratio(w, base row) (float64, bool) {
	return median(ratios(f.byRound(w), f.byRound(base)))
}
