// Package probe works figures out of runs. A probe looks at the samples and the results of a
// run and sets figures by name; tables, claims, published columns and benchstat know them
// by that name. A figure is added where its probe is: in the list of its Figures, and in
// Measure.
package probe

import (
	"fmt"
	"slices"
	"time"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
	"github.com/myriad-go/myriad/tools/internal/lab/stats"
)

// Figure is one number of a run.
type Figure struct {
	// Name is what a scenario calls it, such as "tps". A name is never given to another:
	// reports and scenarios of users have them. Heading stands above a column.
	Name, Heading string
	// Unit is what its values are: seconds, bytes, parts of 1, or a number of what the
	// heading says.
	Unit page.Unit
	// Direction says whether more of it is better.
	Better Direction
	// CustomFormat is how it is written where the unit alone does not say.
	CustomFormat func(float64) string
	// Main has it be the first of a workload's table, with its ± and its ratio to the
	// baseline.
	Main bool
	// Hidden has it in no table of a workload: claims and published tables ask for it.
	Hidden bool
}

// Direction says which way a figure is better.
type Direction int8

// The ways.
const (
	Lower   Direction = -1
	Neither Direction = 0
	Higher  Direction = 1
)

// Probe works out some figures.
type Probe struct {
	Figures []Figure
	// Measure sets those that a run has; nil where the run sets them itself.
	Measure func(in Input, set func(name string, v float64))
}

// Input is what probes look at.
type Input struct {
	Run      *result.Run
	Workload scenario.Workload
	Pinning  result.Pinning
}

// probes are all that there are, in the order of the columns of tables.
var probes = []Probe{throughputProbe, publishProbe, floodProbe, heartbeatProbe, memoryProbe, goroutineProbe, jobsProbe, heldProbe, attackProbe}

// AllFigures are all that there are.
func AllFigures() (all []Figure) {
	for _, p := range probes {
		all = append(all, p.Figures...)
	}
	return all
}

var figures []Figure

func init() { figures = AllFigures() }

// FindFigure finds a figure by its name.
func FindFigure(name string) (Figure, bool) {
	i := slices.IndexFunc(figures, func(f Figure) bool { return f.Name == name })
	if i < 0 {
		return Figure{}, false
	}
	return figures[i], true
}

// HasDirection is what a scenario.Reader asks of figures.
func HasDirection(name string) (better, ok bool) {
	f, ok := FindFigure(name)
	return f.Better != Neither, ok
}

// ScenarioReader reads scenarios whose figures are those of this package.
var ScenarioReader = scenario.Reader{Figures: HasDirection}

// SetFigures works the figures and the marks of a run out that did not fail. With a wrong answer
// it has failed: its figures are of another server than the one that was asked for.
func SetFigures(in Input) {
	r := in.Run
	if r.Figures == nil {
		r.Figures = make(map[string]float64)
	}
	for _, p := range probes {
		if p.Measure != nil {
			p.Measure(in, func(name string, v float64) { r.Figures[name] = v })
		}
	}
	addCaveats(in)
	if r.Error == "" && r.HasCaveat(RuleMismatch) {
		r.Error = "the server answered wrongly"
	}
}

// NoFigure stands where there is no figure.
const NoFigure = "-"

// Format writes a value.
func (f Figure) Format(v float64) string {
	switch {
	case stats.IsNeverLatency(v):
		return "never"
	case f.CustomFormat != nil:
		return f.CustomFormat(v)
	case f.Unit == page.Seconds:
		return format.Latency(time.Duration(v * 1e9))
	case f.Unit == page.Share:
		return fmt.Sprintf("%.0f %%", v*100)
	}
	return format.Whole(v)
}

func formatTwoDecimals(v float64) string { return fmt.Sprintf("%.2f", v) }

// formatMean writes the mean of a number of messages.
func formatMean(v float64) string {
	if v < 1000 {
		return fmt.Sprintf("%.1f", v)
	}
	return format.Whole(v)
}

func formatMebibytes(v float64) string { return fmt.Sprintf("%.1f", v/(1<<20)) }
func formatMegabytes(v float64) string { return format.Whole(v/1e6) + " MB" }
func formatKilobytes(v float64) string { return fmt.Sprintf("%.1f", v/1e3) }
func formatMegabits(v float64) string  { return fmt.Sprintf("%.2f", v/1e6) }

// durationRatio is d as a part of whole, 0 when there is no whole.
func durationRatio(d, whole time.Duration) float64 {
	if whole <= 0 {
		return 0
	}
	return float64(d) / float64(whole)
}

// windowSamples are the samples at the beginning and at the end of a window, false where there are
// none.
func (in Input) windowSamples() (from, to *result.Sample, ok bool) {
	from, to = in.Run.FindSample("measuring"), in.Run.FindSample("measured")
	return from, to, from != nil && to != nil
}

// ForeignCPUs is how many CPUs anything but server, load and lab kept busy, and how many of them
// the host of a virtual machine took: in the window, or in the whole run if there is none.
func ForeignCPUs(r *result.Run) (foreign, stolen float64) {
	in := Input{Run: r}
	from, to, ok := in.windowSamples()
	seen := r.LastLoadResult()
	if !ok || seen == nil {
		return r.Foreign, r.Stolen
	}
	between := to.At.Sub(from.At)
	load := durationRatio(seen.Generator.CPU(), seen.Window)
	foreign = durationRatio(to.Busy-from.Busy-(to.Server.CPU()-from.Server.CPU())-(to.Lab-from.Lab), between) - load
	return max(0, foreign), max(0, durationRatio(to.Stolen-from.Stolen, between))
}

// serverCPU is how many CPUs the server kept busy in the window.
func (in Input) serverCPU() (cpus float64, ok bool) {
	from, to, ok := in.windowSamples()
	if !ok {
		return 0, false
	}
	return durationRatio(to.Server.CPU()-from.Server.CPU(), to.At.Sub(from.At)), true
}
