// Package probe computes figures of runs. A probe reads the samples and results of a run and sets figures by name.
// Tables, claims, reference columns and benchstat use these names. A new figure must be added to a probe twice: to
// Figures, and to the function Measure.
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

// Figure is a number computed from a run.
type Figure struct {
	// Name is the figure's name in scenarios, such as "tps". Names are never reused, because users' reports and
	// scenarios contain them. Heading is the column heading.
	Name, Heading string
	// Unit is the unit of the values: seconds, bytes, or fractions of 1. The zero Unit means counts.
	Unit   page.Unit
	Better Direction
	// CustomFormat formats values that Unit cannot describe.
	CustomFormat func(float64) string
	// Main puts the figure first in a workload's table. A scenario may choose another main figure.
	Main bool
	// Hidden omits the figure from the tables of workloads. Claims and reference tables may still use it.
	Hidden bool
}

// Direction states whether higher or lower values of a figure are better.
type Direction int8

const (
	Lower   Direction = -1
	Neither Direction = 0
	Higher  Direction = 1
)

// Probe computes a group of figures.
type Probe struct {
	Figures []Figure
	// Measure computes the figures of a run, and calls the function set once for each. If other code sets the figures,
	// Measure is nil.
	Measure func(in RunInput, set func(name string, v float64))
}

type RunInput struct {
	Run      *result.Run
	Workload scenario.Workload
	Pinning  result.Pinning
}

// probes contains all probes, in the order of table columns.
var probes = []Probe{throughputProbe, publishProbe, floodProbe, heartbeatProbe, memoryProbe, goroutineProbe, jobsProbe, heldProbe, attackProbe}

func AllFigures() (all []Figure) {
	for _, p := range probes {
		all = append(all, p.Figures...)
	}
	return all
}

var figures []Figure

func init() { figures = AllFigures() }

func FindFigure(name string) (Figure, bool) {
	i := slices.IndexFunc(figures, func(f Figure) bool { return f.Name == name })
	if i < 0 {
		return Figure{}, false
	}
	return figures[i], true
}

// HasBetterDirection looks up a figure by name. exists reports whether there is such a figure. better reports whether
// higher or lower values of the figure are better. ScenarioReader uses this function.
func HasBetterDirection(name string) (better, exists bool) {
	f, exists := FindFigure(name)
	return f.Better != Neither, exists
}

// ScenarioReader reads scenarios. It rejects names of figures that do not exist.
var ScenarioReader = scenario.Reader{Figures: HasBetterDirection}

// SetFiguresCaveatsAndMismatchError sets the figures and caveats of a run. If the server gave a wrong answer and the
// run has no error yet, it also sets the run's error.
func SetFiguresCaveatsAndMismatchError(in RunInput) {
	r := in.Run
	if r.Figures == nil {
		r.Figures = make(map[string]float64)
	}
	for _, p := range probes {
		if p.Measure != nil {
			p.Measure(in, func(name string, v float64) { r.Figures[name] = v })
		}
	}
	addCaveatsForBrokenRules(in)
	if r.Error == "" && r.HasCaveat(RuleMismatch) {
		r.Error = "the server answered wrongly"
	}
}

// NoFigure is the text that replaces a missing figure.
const NoFigure = "-"

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

func formatMeanWholeFrom1000(v float64) string {
	if v < 1000 {
		return fmt.Sprintf("%.1f", v)
	}
	return format.Whole(v)
}

func formatMebibytes(v float64) string { return fmt.Sprintf("%.1f", v/(1<<20)) }
func formatMegabytes(v float64) string { return format.Whole(v/1e6) + " MB" }
func formatKilobytes(v float64) string { return fmt.Sprintf("%.1f", v/1e3) }
func formatMegabits(v float64) string  { return fmt.Sprintf("%.2f", v/1e6) }

func ratioOrZero(d, whole time.Duration) float64 {
	if whole <= 0 {
		return 0
	}
	return float64(d) / float64(whole)
}

func (in RunInput) windowSamples() (from, to *result.Sample, ok bool) {
	from, to = in.Run.FindSample("measuring"), in.Run.FindSample("measured")
	return from, to, from != nil && to != nil
}

// CPUsUsedByOthers returns how many CPUs were busy on average with anything except this program, the server and the
// load generator. If the machine is virtual, its host can also take CPU time away. ofWhichStolenByHost is the part of
// foreign that the host took.
func CPUsUsedByOthers(r *result.Run) (foreign, ofWhichStolenByHost float64) {
	in := RunInput{Run: r}
	from, to, ok := in.windowSamples()
	seen := r.LastLoadResult()
	if !ok || seen == nil {
		return r.Foreign, r.Stolen
	}
	between := to.At.Sub(from.At)
	load := ratioOrZero(seen.Generator.CPU(), seen.Window)
	foreign = ratioOrZero(to.Busy-from.Busy-(to.Server.CPU()-from.Server.CPU())-(to.Lab-from.Lab), between) - load
	return max(0, foreign), max(0, ratioOrZero(to.Stolen-from.Stolen, between))
}

// setGCAndSchedulerFigures sets the figures "gc-share" and "sched-p99" from the server's runtime totals.
func (in RunInput) setGCAndSchedulerFigures(set func(string, float64)) {
	end := in.Run.FindSample("measured")
	if end == nil || end.Runtime == nil || end.Runtime.CPUSeconds == 0 || len(end.Runtime.SchedulerWaits) == 0 {
		return
	}
	set("gc-share", end.Runtime.GCSeconds/end.Runtime.CPUSeconds)
	waits, lower := end.Runtime.SchedulerWaits, [2]float64{}
	wanted := 0.99 * waits[len(waits)-1][1]
	for _, upper := range waits {
		if upper[1] >= wanted && upper[1] > 0 {
			set("sched-p99", lower[0]+(upper[0]-lower[0])*(wanted-lower[1])/(upper[1]-lower[1]))
			return
		}
		lower = upper
	}
}

func (in RunInput) serverCPUsInWindow() (cpus float64, ok bool) {
	from, to, ok := in.windowSamples()
	if !ok {
		return 0, false
	}
	return ratioOrZero(to.Server.CPU()-from.Server.CPU(), to.At.Sub(from.At)), true
}
