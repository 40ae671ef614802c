package report

import (
	"math"
	"slices"
	"time"

	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/load"
)

const (
	minTicks = 3
	// minTickStep is the minimum time between two ticks whose difference is drawn. The kernel counts processor time in
	// steps of 10 ms, so a shorter time would give imprecise values.
	minTickStep = 500 * time.Millisecond
)

// timeCharts lists the charts that show how figures change during a run. Each chart has up to two curves, and the
// functions server and load compute their values. Each function returns the value at a tick, or NaN if the value is
// unknown. If counter is set, the functions return totals, and the chart shows the change of these totals per second.
var timeCharts = []struct {
	title, axis string
	unit        page.Unit
	counter     bool
	server      func(*result.Tick) float64
	load        func(*result.Tick) float64 // drawn dashed; nil for none
}{
	{"CPU of server and load", "CPUs kept busy", page.Number, true,
		func(k *result.Tick) float64 { return cpuSecondsOrNaN(&k.Server) }, func(k *result.Tick) float64 { return cpuSecondsOrNaN(&k.Load) }},
	{"Memory of server and load", "RSS", page.Bytes, false,
		func(k *result.Tick) float64 { return positiveOrNaN(k.Server.RSS) }, func(k *result.Tick) float64 { return positiveOrNaN(k.Load.RSS) }},
	{"The kernel's small objects", "of the whole machine", page.Bytes, false,
		func(k *result.Tick) float64 { return positiveOrNaN(k.Slab) }, nil},
	{"Open connections", "connections that the load has open", page.Number, false,
		func(k *result.Tick) float64 { return generatorValueOrNaN(k, k.Open) }, nil},
	{"Answered", "messages a second", page.Number, true,
		func(k *result.Tick) float64 { return generatorValueOrNaN(k, k.Answered) }, nil},
	{"Goroutines", "goroutines of the server", page.Number, false,
		func(k *result.Tick) float64 { return positiveOrNaN(k.Server.Goroutines) }, nil},
}

func positiveOrNaN(v int64) float64 {
	if v <= 0 {
		return math.NaN()
	}
	return float64(v)
}

func cpuSecondsOrNaN(s *load.Usage) (nanIfNotSampled float64) {
	if s.RSS == 0 {
		return math.NaN()
	}
	return s.CPU().Seconds()
}

func generatorValueOrNaN(k *result.Tick, v int64) float64 {
	if k.Load.RSS == 0 {
		return math.NaN()
	}
	return float64(v)
}

func buildTimelineSection(r *result.Report) page.Section {
	s := page.Section{Title: r.Scenario.Name + ": time lines", Lead: "Of each subject it is its last round. A point of a rate is the mean since the point before it. " +
		"Runs begin when the server is ready: connecting, warm-up and draining are in the picture. " +
		"What a server says of itself is there where its command has {admin}, and not where memory is measured."}
	for _, w := range r.Scenario.Workloads {
		parts := []page.Part{{Heading: w.Name}}
		for _, x := range timeCharts {
			c := &page.Chart{Title: x.title + ": " + w.Name, X: page.Axis{Label: "time since the run began", Unit: page.Clock}, Y: page.Axis{Label: x.axis, Unit: x.unit}}
			for _, row := range groupRunsBySubject(r, w.Name) {
				last := row.lastValidRun()
				if last == nil || len(last.Timeline) < minTicks {
					continue
				}
				for i, of := range []func(*result.Tick) float64{x.server, x.load} {
					if of == nil {
						continue
					}
					t := newTickSeries(last.Timeline, of, x.counter)
					t.Name, t.Dashed = row.subject+[]string{"", ", load"}[i], i == 1
					if slices.ContainsFunc(t.Y, func(y float64) bool { return !math.IsNaN(y) && y != 0 }) {
						c.Series = append(c.Series, t)
					}
				}
			}
			if len(c.Series) > 0 {
				parts = append(parts, page.Part{Chart: c})
			}
		}
		if len(parts) > 1 {
			s.Parts = append(s.Parts, parts...)
		}
	}
	return s
}

// newTickSeries returns a curve with one point per tick. If isCounter is set, the values are totals, and the curve
// shows their change per second. The curve has a gap where a value is unknown or a total has decreased.
func newTickSeries(ticks []result.Tick, value func(*result.Tick) float64, isCounter bool) (s page.Series) {
	before := -1
	for i := range ticks {
		now := &ticks[i]
		y := value(now)
		if isCounter {
			if before >= 0 && now.At-ticks[before].At < minTickStep {
				continue
			}
			total := y
			y = math.NaN()
			if before >= 0 && total >= value(&ticks[before]) {
				y = (total - value(&ticks[before])) / (now.At - ticks[before].At).Seconds()
			}
			if !math.IsNaN(total) {
				before = i
			}
		}
		s.X, s.Y = append(s.X, math.Round(now.At.Seconds()*10)/10), append(s.Y, roundToFourDigitsUnlessWhole(y))
	}
	return s
}
