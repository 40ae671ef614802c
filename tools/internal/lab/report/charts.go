package report

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"sync"

	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/tools/internal/lab/probe"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
	"github.com/myriad-go/myriad/tools/internal/lab/stats"
)

// sizeCharts lists charts that show how a figure depends on the size of the load. The size is a number of connections,
// of goroutines, or of jobs per second.
var sizeCharts = []struct {
	figure, size, title, axis string
	log                       bool
}{
	{"tps", "connections", "Throughput", "messages a second", false},
	{"p99", "connections", "p99 of the latency", "latency", true},
	{"bytes-idle", "connections", "Server memory for each silent connection", "of each connection", true},
	{"bytes-exchanged", "connections", "Server memory for each connection after a message", "of each connection", true},
	{"kernel-idle", "connections", "Kernel memory for each silent connection, both ends", "of each connection", true},
	{"parked-stack", "goroutines", "Stacks of parked goroutines", "of all of them", true},
	{"parked-sys", "goroutines", "Go's memory with parked goroutines", "of all of them", true},
	{"beat-cpu", "connections", "CPU for heartbeats", "of one CPU", false},
	{"goodput", "jobs offered a second", "Goodput by what is offered", "jobs a second within their deadline", false},
	{"p99", "jobs offered a second", "p99 by what is offered", "p99", true},
}

func buildSizeAndLatencyCharts(r *result.Report) []page.Part {
	parts := []page.Part{{Heading: "Charts"}}
	names, families := familiesDifferingInSize(r)
	for _, name := range names {
		parts = append(parts, buildFigureByLoadCharts(r, name, families[name])...)
	}
	for _, w := range r.Scenario.Workloads {
		if c := buildPercentileChartBySubject(r, w); c != nil {
			parts = append(parts, page.Part{Chart: c})
		}
	}
	if len(parts) == 1 {
		return nil
	}
	return parts
}

// roundToFourDigitsUnlessWhole rounds a value to four significant digits. It returns whole numbers up to a million
// unchanged.
func roundToFourDigitsUnlessWhole(v float64) float64 {
	if v == math.Trunc(v) && math.Abs(v) <= 1e6 {
		return v
	}
	four, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
	if err != nil {
		return math.NaN()
	}
	return four
}

// sizeSuffix matches the size at the end of a workload's name, such as "-1000" in "echo-1000" or "-10x" in "cpu-10x".
var sizeSuffix = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`-(unloaded|[0-9]+[a-zA-Z]?)$`) })

// familiesDifferingInSize groups workloads into families. The workloads of a family have names that differ only in
// their size. The map workloadsByFamily contains all families, including families with a single workload.
// namesOfSeveral contains the names of the families with two or more workloads.
func familiesDifferingInSize(r *result.Report) (namesOfSeveral []string, workloadsByFamily map[string][]scenario.Workload) {
	workloadsByFamily = make(map[string][]scenario.Workload)
	for _, w := range r.Scenario.Workloads {
		name := sizeSuffix().ReplaceAllString(w.Name, "")
		if workloadsByFamily[name] == nil {
			namesOfSeveral = append(namesOfSeveral, name)
		}
		workloadsByFamily[name] = append(workloadsByFamily[name], w)
	}
	return slices.DeleteFunc(namesOfSeveral, func(name string) bool { return len(workloadsByFamily[name]) < 2 }), workloadsByFamily
}

func buildFigureByLoadCharts(r *result.Report, familyName string, family []scenario.Workload) (parts []page.Part) {
	for _, of := range sizeCharts {
		figure, _ := probe.FindFigure(of.figure)
		c := &page.Chart{
			Title: of.title + ": " + familyName,
			X:     page.Axis{Label: of.size, Log: true},
			Y:     page.Axis{Label: of.axis, Unit: figure.Unit, Log: of.log},
		}
		curve := false
		for _, subject := range r.Scenario.Subjects {
			s := page.Series{Name: subject.Name, Points: true}
			for _, w := range family {
				x := findSubjectRuns(groupRunsBySubject(r, w.Name), subject.Name)
				size, known := float64(plannedConnsOfSubject(r, w, subject.Name)), w.FindPhase(scenario.Jobs) == nil
				if of.size == "jobs offered a second" {
					size, known = x.medianOfFigure("offered-rate")
				}
				if v, ok := x.medianOfFigure(of.figure); ok && known && !stats.IsNeverLatency(v) {
					s.X, s.Y = append(s.X, roundToFourDigitsUnlessWhole(size)), append(s.Y, roundToFourDigitsUnlessWhole(v))
				}
			}
			if len(s.X) > 0 {
				c.Series = append(c.Series, s)
				curve = curve || slices.Min(s.X) != slices.Max(s.X)
			}
		}
		if !curve {
			continue
		}
		for _, p := range r.Scenario.References {
			if s := publishedSeries(&p, of.figure, family); p.Count == of.size && len(s.X) > 1 {
				c.Series = append(c.Series, s)
			}
		}
		parts = append(parts, page.Part{Chart: c})
	}
	return parts
}

// publishedSeries returns a curve of a published figure. The rows of a published table can describe several designs.
// The curve shows only the rows with the same design as the first row.
func publishedSeries(p *scenario.ReferenceTable, figure string, family []scenario.Workload) page.Series {
	s := page.Series{Name: "published", Points: true}
	i := slices.IndexFunc(p.Columns, func(c scenario.Column) bool { return c.Figure == figure && c.Relative == "" })
	for _, row := range p.Rows {
		in := slices.ContainsFunc(family, func(w scenario.Workload) bool { return w.Name == row.Workload })
		if i < 0 || !in || row.Design != p.Rows[0].Design {
			continue
		}
		if v, ok := p.Columns[i].ParsePublishedCell(row.Cells[i]); ok {
			s.X, s.Y = append(s.X, float64(row.Count)), append(s.Y, roundToFourDigitsUnlessWhole(v))
		}
	}
	return s
}

// buildPercentileChartBySubject returns a chart of latency by percentile. It has one curve per subject, from the
// subject's last valid run. The chart is nil if no run has latencies.
func buildPercentileChartBySubject(r *result.Report, w scenario.Workload) (chartOrNil *page.Chart) {
	c := &page.Chart{
		Title: "Latency by percentile: " + w.Name,
		Note:  "Of each subject it is the last round.",
		X:     page.Axis{Label: "percentile", Unit: page.Percentile},
		Y:     page.Axis{Label: "latency", Unit: page.Seconds, Log: true},
	}
	for _, x := range groupRunsBySubject(r, w.Name) {
		run := x.lastValidRun()
		if run == nil || run.LastLoadResult() == nil || run.LastLoadResult().Latency.Count == 0 {
			continue
		}
		s := run.LastLoadResult().Latency.PercentileCurve()
		for i, y := range s.Y {
			s.Y[i] = roundToFourDigitsUnlessWhole(y)
		}
		s.Name = x.subject
		c.Series = append(c.Series, s)
	}
	if len(c.Series) == 0 {
		return nil
	}
	return c
}
