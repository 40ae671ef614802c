package report

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/myriad-go/myriad/internal/lab/probe"
	"github.com/myriad-go/myriad/internal/lab/result"
	"github.com/myriad-go/myriad/internal/lab/scenario"
	"github.com/myriad-go/myriad/internal/lab/stats"
	"github.com/myriad-go/myriad/internal/page"
)

// charted are the figures that have a chart by size.
var charted = []struct {
	figure, title, axis string
	log                 bool
}{
	{"tps", "Throughput", "messages a second", false},
	{"p99", "p99 of the latency", "latency", true},
	{"bytes-idle", "Server memory for each silent connection", "of each connection", true},
	{"bytes-exchanged", "Server memory for each connection after a message", "of each connection", true},
	{"kernel-idle", "Kernel memory for each silent connection, both ends", "of each connection", true},
	{"parked-stack", "Stacks of parked goroutines", "of all of them", true},
	{"parked-sys", "Go's memory with parked goroutines", "of all of them", true},
	{"beat-cpu", "CPU for heartbeats", "of one CPU", false},
}

// charts are those of a report: figures by size, what became of jobs by how many were offered,
// and latencies.
func charts(r *result.Report, used ids) (parts []page.Part) {
	var all []*page.Chart
	for _, f := range families(r) {
		all = append(all, bySize(r, f)...)
	}
	all = append(all, byOffer(r)...)
	for _, w := range r.Scenario.Workloads {
		if c := byPercentile(r, w); c != nil {
			all = append(all, c)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return append([]page.Part{{Heading: "Charts"}}, chartParts(used, r.Scenario.Name, all)...)
}

// chartParts are charts as parts, each with an ID that begins with a name.
func chartParts(used ids, name string, all []*page.Chart) (parts []page.Part) {
	for _, c := range all {
		c.ID = used.id(name, c.Title)
		parts = append(parts, page.Part{Chart: c})
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

// family are workloads that differ in their size only: in how many connections, or goroutines,
// they have, and in how long they last.
type family struct {
	of        scenario.Workload // without a size
	workloads []scenario.Workload
}

func families(r *result.Report) (all []family) {
	for _, w := range r.Scenario.Workloads {
		of := w
		of.Name, of.Caption, of.Connections, of.Rounds, of.Whole = "", "", 0, 0, false
		of.Phases = nil
		for _, p := range w.Phases {
			of.Phases = append(of.Phases, scenario.Phase{Do: p.Do, Heartbeat: p.Heartbeat, Shape: p.Shape, Times: p.Times})
		}
		i := slices.IndexFunc(all, func(f family) bool { return reflect.DeepEqual(f.of, of) })
		if i < 0 {
			i, all = len(all), append(all, family{of: of})
		}
		all[i].workloads = append(all[i].workloads, w)
	}
	return slices.DeleteFunc(all, func(f family) bool { return len(f.workloads) < 2 })
}

// String says what the workloads have in common, behind a title.
func (f family) String() string {
	var words []string
	if f.of.App != "" {
		words = append(words, f.of.App)
	}
	if f.of.Size > 0 {
		words = append(words, fmt.Sprintf("%d B", f.of.Size))
	}
	if f.of.Pipeline > 1 {
		words = append(words, fmt.Sprintf("%d deep", f.of.Pipeline))
	}
	if f.of.TLS {
		words = append(words, "TLS")
	}
	if f.of.Unpinned {
		words = append(words, "not pinned")
	}
	if len(words) == 0 {
		return ""
	}
	return ": " + strings.Join(words, ", ")
}

// bySize are the charts of a family: our curves, and published points, dashed.
func bySize(r *result.Report, f family) (all []*page.Chart) {
	for _, x := range charted {
		figure, _ := probe.Named(x.figure)
		c := &page.Chart{
			Title: x.title + f.String(),
			X:     page.Axis{Label: "connections", Log: true},
			Y:     page.Axis{Label: x.axis, Unit: figure.Unit, Log: x.log},
		}
		if strings.HasPrefix(x.figure, "parked") {
			c.X.Label = "goroutines"
		}
		for _, s := range r.Scenario.Subjects {
			var points curve
			for _, w := range f.workloads {
				if v, ok := rowNamed(rowsOf(r, w.Name), s.Name).median(x.figure); ok {
					points.add(float64(held(r, w, s.Name)), v)
				}
			}
			if len(points) > 0 {
				series := points.series(s.Name)
				series.Points = true
				c.Series = append(c.Series, series)
			}
		}
		if severalSizes(c) {
			c.Series = append(c.Series, publishedSeries(r, f, x.figure)...)
			all = append(all, c)
		}
	}
	return all
}

// publishedSeries are the published figures of the family's workloads.
func publishedSeries(r *result.Report, f family, figure string) (all []page.Series) {
	for i := range r.Scenario.Published {
		p := &r.Scenario.Published[i]
		column := slices.IndexFunc(p.Columns, func(c scenario.Column) bool { return c.Figure == figure && c.Relative == "" })
		if column < 0 {
			continue
		}
		curves, names := map[string]*curve{}, []string{}
		for _, row := range p.Rows {
			w := slices.IndexFunc(f.workloads, func(w scenario.Workload) bool { return w.Name == row.Workload })
			v, ok := p.Columns[column].Value(row.Cells[column])
			if w < 0 || !ok {
				continue
			}
			name := strings.TrimSuffix("published: "+row.Design, ": ")
			if curves[name] == nil {
				names, curves[name] = append(names, name), &curve{}
			}
			curves[name].add(float64(cmp.Or(row.Count, f.workloads[w].Connections)), v)
		}
		for _, name := range names {
			s := curves[name].series(name)
			s.Dashed, s.Points = true, true
			all = append(all, s)
		}
	}
	return all
}

// severalSizes says whether a chart has a curve: two points that are not above each other.
func severalSizes(c *page.Chart) bool {
	return slices.ContainsFunc(c.Series, func(s page.Series) bool { return len(s.X) > 1 && s.X[0] != s.X[len(s.X)-1] })
}

// byOffer are goodput and latency by what is offered, for each shape of jobs.
func byOffer(r *result.Report) (all []*page.Chart) {
	shapes := []string{}
	for _, w := range r.Scenario.Workloads {
		if p := w.Phase(scenario.Jobs); p != nil && !slices.Contains(shapes, p.Shape) {
			shapes = append(shapes, p.Shape)
		}
	}
	for _, shape := range shapes {
		for _, of := range []struct {
			figure string
			chart  page.Chart
		}{
			{"goodput", page.Chart{Title: "Goodput by what is offered: " + shape, Y: page.Axis{Label: "jobs a second within their deadline"}}},
			{"p99", page.Chart{Title: "p99 by what is offered: " + shape, Y: page.Axis{Label: "p99", Unit: page.Seconds, Log: true}}},
		} {
			c := of.chart
			c.X = page.Axis{Label: "jobs offered a second", Log: true}
			for _, s := range r.Scenario.Subjects {
				var points curve
				for _, w := range r.Scenario.Workloads {
					if p := w.Phase(scenario.Jobs); p == nil || p.Shape != shape {
						continue
					}
					x := rowNamed(rowsOf(r, w.Name), s.Name)
					rate, ok := x.median("offered-rate")
					v, ok2 := x.median(of.figure)
					if ok && ok2 && !stats.IsNever(v) {
						points.add(rate, v)
					}
				}
				if len(points) > 0 {
					series := points.series(s.Name)
					series.Points = true
					c.Series = append(c.Series, series)
				}
			}
			if severalSizes(&c) {
				all = append(all, &c)
			}
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

const (
	// fewestTicks are what a time line has that is drawn, and mostTicks how many of a
	// longer one are.
	fewestTicks = 3
	mostTicks   = 120
	// shortestStep is the least time between two ticks whose difference is drawn: the
	// kernel counts processor time in steps of 10 ms.
	shortestStep = 500 * time.Millisecond
)

// timeChart is a chart of a time line, with one curve or several of each subject.
type timeChart struct {
	title  string
	axis   page.Axis
	curves []timeCurve
}

// timeCurve is a curve of a subject's ticks: a level, a rate a second, or by how much more
// there is than at first. of is false where it is not known.
type timeCurve struct {
	name    string
	how     int
	dashed  bool
	gapless bool // points are too seldom for gaps
	of      func(*result.Tick) (float64, bool)
}

const (
	level = iota
	perSecond
	grown
)

func positive(v float64) (float64, bool) { return v, v > 0 }

func cpu(s *result.TickSide) (float64, bool) { return (s.User + s.System).Seconds(), s.RSS > 0 }

var timeCharts = []timeChart{
	{"CPU of server and load", page.Axis{Label: "CPUs kept busy"}, []timeCurve{
		{", server", perSecond, false, false, func(k *result.Tick) (float64, bool) { return cpu(&k.Server) }},
		{", load", perSecond, true, false, func(k *result.Tick) (float64, bool) { return cpu(&k.Load) }},
	}},
	{"Memory", page.Axis{Label: "RSS and PSS of the server; by how much the kernel's small objects have grown", Unit: page.Bytes}, []timeCurve{
		{", server", level, false, false, func(k *result.Tick) (float64, bool) { return positive(float64(k.Server.RSS)) }},
		{", server, PSS", level, true, true, func(k *result.Tick) (float64, bool) { return positive(float64(k.Server.PSS)) }},
		{", kernel", grown, true, false, func(k *result.Tick) (float64, bool) { return positive(float64(k.Slab)) }},
	}},
	{"Memory of the machine", page.Axis{Label: "how much more is free than at first; what the buffers of TCP take", Unit: page.Bytes}, []timeCurve{
		{", free", grown, false, false, func(k *result.Tick) (float64, bool) { return positive(float64(k.Free)) }},
		{", TCP", level, true, false, func(k *result.Tick) (float64, bool) { return float64(k.TCPMemory), true }},
	}},
	{"Open connections", page.Axis{Label: "connections that the load has open"}, []timeCurve{
		{"", level, false, false, func(k *result.Tick) (float64, bool) { return float64(k.Open), k.Load.RSS > 0 }},
	}},
	{"Answered", page.Axis{Label: "messages a second"}, []timeCurve{
		{"", perSecond, false, false, func(k *result.Tick) (float64, bool) { return float64(k.Answered), k.Load.RSS > 0 }},
	}},
	{"Goroutines", page.Axis{Label: "goroutines of the server"}, []timeCurve{
		{"", level, false, false, func(k *result.Tick) (float64, bool) { return positive(float64(k.Server.Goroutines)) }},
	}},
	{"Collections of garbage", page.Axis{Label: "a second, of server and load"}, []timeCurve{
		{", server", perSecond, false, false, func(k *result.Tick) (float64, bool) { return float64(k.Server.GCs), k.Server.Goroutines > 0 }},
		{", load", perSecond, true, false, func(k *result.Tick) (float64, bool) { return float64(k.Load.GCs), k.Load.Goroutines > 0 }},
	}},
	{"Context switches", page.Axis{Label: "a second, of the server"}, []timeCurve{
		{"", perSecond, false, false, func(k *result.Tick) (float64, bool) {
			return positive(float64(k.Server.Voluntary + k.Server.Involuntary))
		}},
	}},
	{"TCP sockets that nobody has open", page.Axis{Label: "TIME_WAIT and orphans of the machine, those of runs before among them"}, []timeCurve{
		{", TIME_WAIT", level, false, false, func(k *result.Tick) (float64, bool) { return float64(k.TimeWait), true }},
		{", orphans", level, true, false, func(k *result.Tick) (float64, bool) { return float64(k.Orphans), true }},
	}},
}

// timelines are the time lines of a report, none where there are too few ticks.
func timelines(r *result.Report, used ids) []page.Section {
	s := page.Section{Title: r.Scenario.Name + ": time lines", Lead: "Of each subject it is its last round. A point of a rate is the mean since the point before it. " +
		"Runs begin when the server is ready: connecting, warm-up and draining are in the picture. " +
		"What a server says of itself is there where its command has {admin}, and not where memory is measured."}
	for _, w := range r.Scenario.Workloads {
		var all []*page.Chart
		for _, x := range timeCharts {
			c := &page.Chart{Title: x.title + ": " + w.Name, X: page.Axis{Label: "time since the run began", Unit: page.Clock}, Y: x.axis}
			for _, row := range rowsOf(r, w.Name) {
				ticks := lastTicks(row)
				for _, t := range x.curves {
					if s := t.draw(row.subject, ticks); slices.ContainsFunc(s.Y, func(y float64) bool { return !math.IsNaN(y) && y != 0 }) {
						c.Series = append(c.Series, s)
					}
				}
			}
			if len(c.Series) > 0 {
				all = append(all, c)
			}
		}
		if len(all) > 0 {
			s.Parts = append(s.Parts, page.Part{Heading: w.Name})
			s.Parts = append(s.Parts, chartParts(used, r.Scenario.Name+"-t", all)...)
		}
	}
	if len(s.Parts) == 0 {
		return nil
	}
	s.ID = used.id(r.Scenario.Name, "time-lines")
	return []page.Section{s}
}

// lastTicks is the time line of the last run that counts, thinned, nil where it is too short.
func lastTicks(x row) (ticks []result.Tick) {
	for _, run := range x.runs {
		if run.Counts() && len(run.Timeline) > 0 {
			ticks = run.Timeline
		}
	}
	if len(ticks) < fewestTicks {
		return nil
	}
	step := (len(ticks) + mostTicks - 1) / mostTicks
	var kept []result.Tick
	for i := 0; i < len(ticks); i += step {
		kept = append(kept, ticks[i])
	}
	return kept
}

// draw draws a curve. What is not known is a gap, and so is a counter that went back: it has
// begun anew, with another process.
func (t timeCurve) draw(subject string, ticks []result.Tick) page.Series {
	s := page.Series{Name: subject + t.name, Dashed: t.dashed}
	var first float64
	var before *result.Tick
	for i := range ticks {
		now := &ticks[i]
		v, ok := t.of(now)
		y := math.NaN()
		switch t.how {
		case level:
			if ok {
				y = v
			}
		case grown:
			if i == 0 {
				first = v
			}
			if ok && first > 0 {
				y = v - first
			}
		case perSecond:
			if before != nil && now.At-before.At < shortestStep {
				continue
			}
			if before != nil && ok {
				if was, _ := t.of(before); v >= was {
					y = (v - was) / (now.At - before.At).Seconds()
				}
			}
			if ok {
				before = now
			}
		}
		if t.gapless && math.IsNaN(y) {
			continue
		}
		s.X, s.Y = append(s.X, math.Round(now.At.Seconds()*10)/10), append(s.Y, rounded(y))
	}
	return s
}
