package lab

import (
	"fmt"
	"slices"
	"strings"

	"github.com/myriad-go/myriad/internal/page"
)

// family are workloads that differ in their size only: in how many connections, or
// goroutines, they have, and in how long they last.
type family struct {
	of        Workload // without a size
	workloads []Workload
}

// families are the workloads of a scenario that have charts by size.
func (r *Report) families() (all []family) {
	for _, w := range r.Scenario.Workloads {
		of := w
		of.Name, of.Caption, of.Connections = "", "", 0
		of.Duration, of.WarmUp, of.Drain, of.Hold = 0, 0, 0, 0
		i := slices.IndexFunc(all, func(f family) bool { return sameWorkload(f.of, of) })
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

// sizeChart is a chart of a figure by size.
type sizeChart struct {
	figure Figure
	title  string
	axis   string // what stands above the Y axis
	log    bool
}

// figures are what is drawn of a family.
func (f family) figures() []sizeChart {
	switch {
	case f.of.Kind == Throughput:
		return []sizeChart{{tps, "Throughput", "messages a second", false}, {p99, "p99 of the latency", "latency", true}}
	case f.of.Kind == Idle && f.of.Full:
		return []sizeChart{
			{fullIdleRSS, "Server memory for each silent connection", "of each connection", true},
			{fullExchangedRSS, "Server memory for each connection after a message", "of each connection", true},
			{fullIdleKernel, "Kernel memory for each silent connection, both ends", "of each connection", true},
		}
	case f.of.Kind == Idle:
		return []sizeChart{
			{bytesIdle, "Server memory for each silent connection", "of each connection", true},
			{bytesExchanged, "Server memory for each connection after a message", "of each connection", true},
			{kernelIdle, "Kernel memory for each silent connection, both ends", "of each connection", true},
		}
	case f.of.Kind == Parking:
		return []sizeChart{
			{parkedStackInuse, "Stacks of parked goroutines", "of all of them", true},
			{parkedSys, "Go's memory with parked goroutines", "of all of them", true},
			{parkedRSS, "Resident memory with parked goroutines", "of all of them", true},
		}
	case f.of.Kind == Heartbeats:
		return []sizeChart{{beatCPU, "CPU for heartbeats", "of one CPU", false}, {beatRSS, "Server memory for each connection with heartbeats", "of each connection", true}}
	}
	return nil
}

// sizeCharts are the charts of a family: our curves, and published points, dashed.
func (r *Report) sizeCharts(f family) (all []*page.Chart) {
	for _, x := range f.figures() {
		c := &page.Chart{
			Title: x.title + f.String(),
			X:     page.Axis{Label: f.counts(), Log: true},
			Y:     page.Axis{Label: x.axis, Unit: x.figure.Unit, Log: x.log},
		}
		for _, s := range r.Scenario.Subjects {
			var curve curve
			for _, w := range f.workloads {
				if v, ok := x.figure.median(rowOf(r.rows(w.Name), s.Name)); ok {
					curve.add(float64(r.held(w, s.Name)), v)
				}
			}
			if len(curve.points) > 0 {
				c.Series = append(c.Series, pointed(curve.series(s.Name)))
			}
		}
		if len(c.Series) == 0 {
			continue
		}
		c.Series = append(c.Series, r.publishedSeries(f, x.figure)...)
		if severalSizes(c) {
			all = append(all, c)
		}
	}
	return all
}

// counts is what there are so many of.
func (f family) counts() string {
	if f.of.Kind == Parking {
		return "goroutines"
	}
	return "connections"
}

// publishedSeries are the published figures that are comparable: those of the family's
// workloads, in rows whose connections were loaded.
func (r *Report) publishedSeries(f family, figure Figure) (all []page.Series) {
	for i := range r.Scenario.Published {
		p := &r.Scenario.Published[i]
		column := slices.IndexFunc(p.Columns, func(c PublishedColumn) bool { return c.Figure == figure.Name && c.Relative == "" })
		if column < 0 {
			continue
		}
		curves, names := map[string]*curve{}, []string{}
		for j := range p.Rows {
			row := &p.Rows[j]
			w := slices.IndexFunc(f.workloads, func(w Workload) bool { return w.Name == row.Workload })
			v, ok := p.Columns[column].value(row.Cells[column])
			if _, off, _ := p.loaded(row); w < 0 || !ok || off {
				continue
			}
			name := "published: " + row.Design
			if curves[name] == nil {
				names, curves[name] = append(names, name), &curve{}
			}
			size := row.Count
			if size == 0 {
				size = f.workloads[w].Connections
			}
			curves[name].add(float64(size), v)
		}
		for _, name := range names {
			s := curves[name].series(strings.TrimSuffix(name, ": "))
			s.Dashed, s.Points = true, true
			all = append(all, s)
		}
	}
	return all
}

// value reads a published cell, such as "202,830", "4.9 s" or "38.8" under a column in MiB,
// in the unit of the column's figure.
func (c PublishedColumn) value(cell string) (float64, bool) {
	number, unit, _ := strings.Cut(cell, " ")
	v, ok := amount(number)
	switch factor := publishedUnits[unit]; {
	case factor != 0:
		return v * factor, ok
	case unit != "":
		return 0, false
	case c.Unit != "":
		return v * publishedUnits[c.Unit], ok
	}
	return v, ok
}

// severalSizes says whether a chart has a curve: two points that are not above each other.
func severalSizes(c *page.Chart) bool {
	return slices.ContainsFunc(c.Series, func(s page.Series) bool { return !s.Dashed && len(s.X) > 1 && s.X[0] != s.X[len(s.X)-1] })
}
