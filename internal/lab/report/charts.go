package report

import (
	"cmp"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/myriad-go/myriad/internal/lab/probe"
	"github.com/myriad-go/myriad/internal/lab/result"
	"github.com/myriad-go/myriad/internal/lab/scenario"
	"github.com/myriad-go/myriad/internal/lab/stats"
	"github.com/myriad-go/myriad/internal/page"
)

// charted are the figures that have a chart by size: by how many connections there were, by
// how many goroutines, or by how many jobs were offered.
var charted = []struct {
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

// charts are those of a report: figures by size, and latencies by percentile.
func charts(r *result.Report) []page.Part {
	parts := []page.Part{{Heading: "Charts"}}
	names, families := families(r)
	for _, name := range names {
		parts = append(parts, bySize(r, name, families[name])...)
	}
	for _, w := range r.Scenario.Workloads {
		if c := byPercentile(r, w); c != nil {
			parts = append(parts, page.Part{Chart: c})
		}
	}
	if len(parts) == 1 {
		return nil
	}
	return parts
}

// curve collects the points of a series.
type curve [][2]float64

func (c *curve) add(x, y float64) { *c = append(*c, [2]float64{rounded(x), rounded(y)}) }

// series are the points in the order of X.
func (c curve) series(name string) page.Series {
	s := page.Series{Name: name}
	slices.SortStableFunc(c, func(a, b [2]float64) int { return cmp.Compare(a[0], b[0]) })
	for _, p := range c {
		s.X, s.Y = append(s.X, p[0]), append(s.Y, p[1])
	}
	return s
}

// rounded is a value with four significant digits, which is more than a chart shows and keeps
// pages small. Whole numbers below a million stay as they are: sizes are such.
func rounded(v float64) float64 {
	if v == math.Trunc(v) && math.Abs(v) <= 1e6 {
		return v
	}
	four, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
	if err != nil {
		return math.NaN()
	}
	return four
}

// sizeInName is what tells a workload from others of its family: "echo-100" from "echo-1000",
// "cpu-unloaded" from "cpu-10x".
var sizeInName = regexp.MustCompile(`-(unloaded|[0-9]+[a-zA-Z]?)$`)

// families are the workloads that differ in their size alone, going by their names. Those of
// one are in no family.
func families(r *result.Report) (names []string, all map[string][]scenario.Workload) {
	all = make(map[string][]scenario.Workload)
	for _, w := range r.Scenario.Workloads {
		name := sizeInName.ReplaceAllString(w.Name, "")
		if all[name] == nil {
			names = append(names, name)
		}
		all[name] = append(all[name], w)
	}
	return slices.DeleteFunc(names, func(name string) bool { return len(all[name]) < 2 }), all
}

// bySize are the charts of a family: our curves, and published points, dashed.
func bySize(r *result.Report, name string, family []scenario.Workload) (parts []page.Part) {
	for _, of := range charted {
		figure, _ := probe.Named(of.figure)
		c := &page.Chart{
			Title: of.title + ": " + name,
			X:     page.Axis{Label: of.size, Log: true},
			Y:     page.Axis{Label: of.axis, Unit: figure.Unit, Log: of.log},
		}
		for _, s := range r.Scenario.Subjects {
			var points curve
			for _, w := range family {
				x := rowNamed(rowsOf(r, w.Name), s.Name)
				size, known := float64(connections(r, w, s.Name)), w.Phase(scenario.Jobs) == nil
				if of.size == "jobs offered a second" {
					size, known = x.median("offered-rate")
				}
				if v, ok := x.median(of.figure); ok && known && !stats.IsNever(v) {
					points.add(size, v)
				}
			}
			if len(points) > 0 {
				c.Series = append(c.Series, points.series(s.Name))
			}
		}
		if !slices.ContainsFunc(c.Series, func(s page.Series) bool { return s.X[0] != s.X[len(s.X)-1] }) {
			continue // no curve
		}
		c.Series = append(c.Series, publishedSeries(r, family, of.figure)...)
		for i := range c.Series {
			c.Series[i].Points = true
		}
		parts = append(parts, page.Part{Chart: c})
	}
	return parts
}

// publishedSeries are the published figures of the family's workloads.
func publishedSeries(r *result.Report, family []scenario.Workload, figure string) (all []page.Series) {
	for i := range r.Scenario.Published {
		p := &r.Scenario.Published[i]
		column := slices.IndexFunc(p.Columns, func(c scenario.Column) bool { return c.Figure == figure && c.Relative == "" })
		if column < 0 {
			continue
		}
		curves, names := map[string]*curve{}, []string{}
		for _, row := range p.Rows {
			w := slices.IndexFunc(family, func(w scenario.Workload) bool { return w.Name == row.Workload })
			v, ok := p.Columns[column].Value(row.Cells[column])
			if w < 0 || !ok {
				continue
			}
			name := strings.TrimSuffix("published: "+row.Design, ": ")
			if curves[name] == nil {
				names, curves[name] = append(names, name), &curve{}
			}
			curves[name].add(float64(cmp.Or(row.Count, family[w].Connections)), v)
		}
		for _, name := range names {
			s := curves[name].series(name)
			s.Dashed = true
			all = append(all, s)
		}
	}
	return all
}

// byPercentile is the latency of each subject by percentile, nil where no run has it.
func byPercentile(r *result.Report, w scenario.Workload) *page.Chart {
	c := &page.Chart{
		Title: "Latency by percentile: " + w.Name,
		Note:  "Of each subject it is the round with the middle throughput.",
		X:     page.Axis{Label: "percentile", Unit: page.Percentile},
		Y:     page.Axis{Label: "latency", Unit: page.Seconds, Log: true},
	}
	for _, x := range rowsOf(r, w.Name) {
		run := middle(x, "tps")
		if run == nil || run.Result() == nil {
			continue
		}
		h, err := hdrhistogram.Decode([]byte(run.Result().Histogram))
		if err != nil || h.TotalCount() == 0 {
			continue // the run has none
		}
		c.Series = append(c.Series, percentiles(x.subject, h))
	}
	if len(c.Series) == 0 {
		return nil
	}
	return c
}

// middle is the run with the median of a figure, the lower one of two, nil where none has it.
func middle(x row, figure string) *result.Run {
	having := slices.DeleteFunc(slices.Clone(x.runs), func(run *result.Run) bool {
		_, ok := run.Figures[figure]
		return !ok || !run.Counts()
	})
	if len(having) == 0 {
		return nil
	}
	slices.SortStableFunc(having, func(a, b *result.Run) int { return cmp.Compare(a.Figures[figure], b.Figures[figure]) })
	return having[(len(having)-1)/2]
}

// percentiles is a histogram of nanoseconds as a curve, of which X is 1/(1-p). It ends with
// the longest, where a percentile would be of less than one value.
func percentiles(name string, h *hdrhistogram.Histogram) page.Series {
	const pointsEachNine, mostNines = 12, 6
	var c curve
	for i := range pointsEachNine * mostNines {
		x := math.Pow(10, float64(i+1)/pointsEachNine)
		if x >= float64(h.TotalCount()) {
			break
		}
		c.add(x, float64(h.ValueAtPercentile(100*(1-1/x)))/1e9)
	}
	c.add(float64(h.TotalCount()), float64(h.Max())/1e9)
	return c.series(name)
}
