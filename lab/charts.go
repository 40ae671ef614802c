package lab

import (
	"cmp"
	"math"
	"slices"
	"strconv"

	"github.com/myriad-go/myriad/internal/page"
)

// charts are those of a report: figures by size, under each load, and latencies.
func (r *Report) charts(used ids) []page.Part {
	var all []*page.Chart
	for _, g := range r.families() {
		all = append(all, r.sizeCharts(g)...)
	}
	all = append(all, r.offeredCharts()...)
	for _, w := range r.Scenario.Workloads {
		if c := r.latencyChart(w); c != nil {
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
type curve struct{ points [][2]float64 }

// add adds a point; an infinite value is none.
func (c *curve) add(x, y float64) {
	if !math.IsInf(y, 0) {
		c.points = append(c.points, [2]float64{rounded(x), rounded(y)})
	}
}

// series are the points in the order of X.
func (c *curve) series(name string) page.Series {
	s := page.Series{Name: name}
	slices.SortStableFunc(c.points, func(a, b [2]float64) int { return cmp.Compare(a[0], b[0]) })
	for _, p := range c.points {
		s.X, s.Y = append(s.X, p[0]), append(s.Y, p[1])
	}
	return s
}

// pointed is a series of few points, each of which is drawn.
func pointed(s page.Series) page.Series {
	s.Points = true
	return s
}

// rounded is a value with four significant digits, which is more than a chart shows and
// keeps pages small. Whole numbers below a million stay as they are: sizes are such.
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

// offeredCharts are goodput and latency by what is offered, for each shape of jobs that
// was offered in more than one way.
func (r *Report) offeredCharts() (all []*page.Chart) {
	shapes, byShape := []string{}, map[string]map[string]*[2]curve{}
	goodput, _ := figureNamed("goodput")
	for _, w := range r.Scenario.Workloads {
		for _, x := range r.rows(w.Name) {
			shape, rate := x.offered()
			if shape == "" {
				continue
			}
			if byShape[shape] == nil {
				shapes, byShape[shape] = append(shapes, shape), map[string]*[2]curve{}
			}
			if byShape[shape][x.subject] == nil {
				byShape[shape][x.subject] = &[2]curve{}
			}
			for i, f := range []Figure{goodput, p99} {
				if v, ok := f.median(x); ok {
					byShape[shape][x.subject][i].add(rate, v)
				}
			}
		}
	}
	for _, shape := range shapes {
		for i, c := range []page.Chart{
			{Title: "Goodput by what is offered: " + shape, Y: page.Axis{Label: "jobs a second within their deadline"}},
			{Title: "p99 by what is offered: " + shape, Y: page.Axis{Label: "p99", Unit: page.Seconds, Log: true}},
		} {
			c.X = page.Axis{Label: "jobs offered a second", Log: true}
			for _, s := range r.Scenario.Subjects {
				if curves := byShape[shape][s.Name]; curves != nil && len(curves[i].points) > 0 {
					c.Series = append(c.Series, pointed(curves[i].series(s.Name)))
				}
			}
			if severalSizes(&c) {
				all = append(all, &c)
			}
		}
	}
	return all
}

// offered is the shape of the jobs that a row was offered, and the median of their rates.
func (w row) offered() (shape string, rate float64) {
	var rates []float64
	for _, run := range w.runs {
		if o := overloadOf(run); o != nil {
			shape, rates = o.Shape, append(rates, o.Rate)
		}
	}
	rate, _ = median(rates)
	return shape, rate
}
