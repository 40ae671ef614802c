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
	// Better says whether more of it is better.
	Better Better
	// Write is how it is written where the unit alone does not say.
	Write func(float64) string
	// Main has it be the first of a workload's table, with its ± and its ratio to the
	// baseline.
	Main bool
	// Hidden has it in no table of a workload: claims and published tables ask for it.
	Hidden bool
}

// Better says which way a figure is better.
type Better int8

// The ways.
const (
	Lower   Better = -1
	Neither Better = 0
	Higher  Better = 1
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
var probes = []Probe{throughput, publish, flood, heartbeats, memory, goroutines, jobs, held, attack}

// Figures are all that there are.
func Figures() (all []Figure) {
	for _, p := range probes {
		all = append(all, p.Figures...)
	}
	return all
}

var figures []Figure

func init() { figures = Figures() }

// Named finds a figure by its name.
func Named(name string) (Figure, bool) {
	i := slices.IndexFunc(figures, func(f Figure) bool { return f.Name == name })
	if i < 0 {
		return Figure{}, false
	}
	return figures[i], true
}

// Known is what a scenario.Reader asks of figures.
func Known(name string) (better, ok bool) {
	f, ok := Named(name)
	return f.Better != Neither, ok
}

// Scenarios reads scenarios whose figures are those of this package.
var Scenarios = scenario.Reader{Figures: Known}

// Measure works the figures and the marks of a run out that did not fail. With a wrong answer
// it has failed: its figures are of another server than the one that was asked for.
func Measure(in Input) {
	r := in.Run
	if r.Figures == nil {
		r.Figures = make(map[string]float64)
	}
	for _, p := range probes {
		if p.Measure != nil {
			p.Measure(in, func(name string, v float64) { r.Figures[name] = v })
		}
	}
	mark(in)
	if r.Error == "" && r.HasCaveat(RuleMismatch) {
		r.Error = "the server answered wrongly"
	}
}

// None stands where there is no figure.
const None = "-"

// Text writes a value.
func (f Figure) Text(v float64) string {
	switch {
	case stats.IsNeverLatency(v):
		return "never"
	case f.Write != nil:
		return f.Write(v)
	case f.Unit == page.Seconds:
		return format.Latency(time.Duration(v * 1e9))
	case f.Unit == page.Share:
		return fmt.Sprintf("%.0f %%", v*100)
	}
	return format.Whole(v)
}

func twoDecimals(v float64) string { return fmt.Sprintf("%.2f", v) }

// mean writes the mean of a number of messages.
func mean(v float64) string {
	if v < 1000 {
		return fmt.Sprintf("%.1f", v)
	}
	return format.Whole(v)
}

func mebibytes(v float64) string { return fmt.Sprintf("%.1f", v/(1<<20)) }
func megabytes(v float64) string { return format.Whole(v/1e6) + " MB" }
func kilobytes(v float64) string { return fmt.Sprintf("%.1f", v/1e3) }
func megabits(v float64) string  { return fmt.Sprintf("%.2f", v/1e6) }

// part is d as a part of whole, 0 when there is no whole.
func part(d, whole time.Duration) float64 {
	if whole <= 0 {
		return 0
	}
	return float64(d) / float64(whole)
}

// window are the samples at the beginning and at the end of a window, false where there are
// none.
func (in Input) window() (from, to *result.Sample, ok bool) {
	from, to = in.Run.FindSample("measuring"), in.Run.FindSample("measured")
	return from, to, from != nil && to != nil
}

// Foreign is how many CPUs anything but server, load and lab kept busy, and how many of them
// the host of a virtual machine took: in the window, or in the whole run if there is none.
func Foreign(r *result.Run) (foreign, stolen float64) {
	in := Input{Run: r}
	from, to, ok := in.window()
	seen := r.LastLoadResult()
	if !ok || seen == nil {
		return r.Foreign, r.Stolen
	}
	between := to.At.Sub(from.At)
	load := part(seen.Generator.CPU(), seen.Window)
	foreign = part(to.Busy-from.Busy-(to.Server.CPU()-from.Server.CPU())-(to.Lab-from.Lab), between) - load
	return max(0, foreign), max(0, part(to.Stolen-from.Stolen, between))
}

// serverCPU is how many CPUs the server kept busy in the window.
func (in Input) serverCPU() (cpus float64, ok bool) {
	from, to, ok := in.window()
	if !ok {
		return 0, false
	}
	return part(to.Server.CPU()-from.Server.CPU(), to.At.Sub(from.At)), true
}
