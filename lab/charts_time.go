package lab

import (
	"math"
	"time"

	"github.com/myriad-go/myriad/internal/page"
)

const (
	// fewestTicks are what a time line has that is drawn, and mostTicks how many of a
	// longer one are.
	fewestTicks = 3
	mostTicks   = 120
	// shortestStep is the least time between two ticks whose difference is drawn: the
	// last tick of a run may be right behind another one, and the kernel counts
	// processor time in steps of 10 ms.
	shortestStep = 500 * time.Millisecond
)

const aboutTimelines = "Of each subject it is its last round. A point of a rate is the mean since the point before it. " +
	"Runs begin when the server is ready: connecting, warm-up and draining are in the picture. " +
	"What a server says of itself (goroutines, garbage, loops) is there where its command has {admin}, and not where memory is measured; with several processes it is of all that serve."

// timelines are the time lines of a report, none where there are too few ticks.
func (r *Report) timelines(used ids) []page.Section {
	s := page.Section{Title: r.Scenario.Name + ": time lines", Lead: aboutTimelines}
	for _, w := range r.Scenario.Workloads {
		var drawn []timed
		for _, x := range r.rows(w.Name) {
			if ticks := x.lastTicks(); len(ticks) >= fewestTicks {
				drawn = append(drawn, timed{x.subject, thinned(ticks)})
			}
		}
		if charts := timeCharts(w.Name, drawn); len(charts) > 0 {
			s.Parts = append(s.Parts, page.Part{Heading: w.Name})
			s.Parts = append(s.Parts, chartParts(used, r.Scenario.Name+"-t", charts)...)
		}
	}
	if len(s.Parts) == 0 {
		return nil
	}
	s.ID = used.id(r.Scenario.Name, "time-lines")
	return []page.Section{s}
}

// timed is a subject's time line.
type timed struct {
	subject string
	ticks   []Tick
}

// lastTicks is the time line of the last run that counts.
func (w row) lastTicks() (ticks []Tick) {
	for _, run := range w.runs {
		if run.Error == "" && run.Skipped == "" && len(run.Timeline) > 0 {
			ticks = run.Timeline
		}
	}
	return ticks
}

// thinned leaves at most mostTicks ticks, evenly far apart.
func thinned(ticks []Tick) []Tick {
	step := (len(ticks) + mostTicks - 1) / mostTicks
	if step < 2 {
		return ticks
	}
	var kept []Tick
	for i := 0; i < len(ticks); i += step {
		kept = append(kept, ticks[i])
	}
	return kept
}

// reads reads a value off a tick, and says false where it is not known.
type reads func(*Tick) (float64, bool)

// timeChart is a chart of a time line, with one curve or several of each subject.
type timeChart struct {
	title string
	axis  page.Axis
	draw  []draws
}

// draws draws a curve of a subject's ticks.
type draws func(subject string, ticks []Tick) page.Series

var clockAxis = page.Axis{Label: "time since the run began", Unit: page.Clock}

// timeCharts are the charts of a workload, without those that would be empty.
func timeCharts(workload string, all []timed) (charts []*page.Chart) {
	for _, t := range timeChartList {
		c := &page.Chart{Title: t.title + ": " + workload, X: clockAxis, Y: t.axis}
		for _, one := range all {
			for _, draw := range t.draw {
				if s := draw(one.subject, one.ticks); says(s) {
					c.Series = append(c.Series, s)
				}
			}
		}
		if len(c.Series) > 0 {
			charts = append(charts, c)
		}
	}
	return charts
}

var timeChartList = []timeChart{
	{"CPU of server and load", page.Axis{Label: "CPUs kept busy"}, []draws{
		rateOf(", server", cpuOf(serverSide)),
		dashed(rateOf(", load", cpuOf(loadSide))),
	}},
	{"Memory", page.Axis{Label: "RSS and PSS of the server; by how much the kernel's small objects have grown", Unit: page.Bytes}, []draws{
		levelOf(", server", func(k *Tick) (float64, bool) { return float64(k.Server.RSS), k.Server.RSS > 0 }),
		dashed(gapless(levelOf(", server, PSS", func(k *Tick) (float64, bool) { return float64(k.Server.PSS), k.Server.PSS > 0 }))),
		dashed(growthOf(", kernel", func(k *Tick) int64 { return k.Slab })),
	}},
	{"Memory of the machine", page.Axis{Label: "how much less is free than at first; what the buffers of TCP take", Unit: page.Bytes}, []draws{
		growthOf(", no more free", func(k *Tick) int64 { return -k.Free }),
		dashed(levelOf(", TCP", func(k *Tick) (float64, bool) { return float64(k.TCPMemory), true })),
	}},
	{"Open connections", page.Axis{Label: "connections that the load has open"}, []draws{
		levelOf("", func(k *Tick) (float64, bool) { return float64(k.Open), k.Load.RSS > 0 }),
	}},
	{"TCP sockets that nobody has open", page.Axis{Label: "TIME_WAIT and orphans of the machine, those of runs before among them"}, []draws{
		levelOf(", TIME_WAIT", func(k *Tick) (float64, bool) { return float64(k.TimeWait), true }),
		dashed(levelOf(", orphans", func(k *Tick) (float64, bool) { return float64(k.Orphans), true })),
	}},
	{"Answered", page.Axis{Label: "messages a second"}, []draws{
		rateOf("", func(k *Tick) (float64, bool) { return float64(k.Answered), k.Load.RSS > 0 }),
	}},
	{"Goroutines", page.Axis{Label: "goroutines of the server"}, []draws{
		levelOf("", func(k *Tick) (float64, bool) { return float64(k.Server.Goroutines), k.Server.Goroutines > 0 }),
	}},
	{"Collections of garbage", page.Axis{Label: "a second, of server and load"}, []draws{
		rateOf(", server", collectionsOf(serverSide)),
		dashed(rateOf(", load", collectionsOf(loadSide))),
	}},
	{"Turns of loops", page.Axis{Label: "mean of the server's loops", Unit: page.Seconds}, []draws{meanTurn}},
	{"Context switches", page.Axis{Label: "a second, of the server"}, []draws{
		rateOf("", func(k *Tick) (float64, bool) {
			n := k.Server.Voluntary + k.Server.Involuntary
			return float64(n), n > 0
		}),
	}},
}

// levelOf and rateOf draw levels and rates, under the subject's name with more behind it.
func levelOf(more string, read reads) draws {
	return func(subject string, t []Tick) page.Series { return levels(subject+more, t, read) }
}

func rateOf(more string, read reads) draws {
	return func(subject string, t []Tick) page.Series { return rate(subject+more, t, read) }
}

// growthOf draws by how much more there is than at the first tick; nothing where that did
// not know. 0 is not known.
func growthOf(more string, of func(*Tick) int64) draws {
	return func(subject string, t []Tick) page.Series {
		first := of(&t[0])
		return levels(subject+more, t, func(k *Tick) (float64, bool) { return float64(of(k) - first), of(k) != 0 && first != 0 })
	}
}

// gapless leaves out what a curve does not know, where that is looked at too seldom for
// gaps: points between two of them would not be seen.
func gapless(draw draws) draws {
	return func(subject string, t []Tick) page.Series {
		all := draw(subject, t)
		x, y := all.X, all.Y
		all.X, all.Y = nil, nil
		for i := range y {
			if !math.IsNaN(y[i]) {
				all.X, all.Y = append(all.X, x[i]), append(all.Y, y[i])
			}
		}
		return all
	}
}

func dashed(draw draws) draws {
	return func(subject string, t []Tick) page.Series {
		s := draw(subject, t)
		s.Dashed = true
		return s
	}
}

func serverSide(t *Tick) *TickSide { return &t.Server }
func loadSide(t *Tick) *TickSide   { return &t.Load }

// cpuOf reads the processor time of a side, in seconds, where there is one.
func cpuOf(side func(*Tick) *TickSide) reads {
	return func(t *Tick) (float64, bool) {
		s := side(t)
		return (s.User + s.System).Seconds(), s.RSS > 0
	}
}

func collectionsOf(side func(*Tick) *TickSide) reads {
	return func(t *Tick) (float64, bool) { return float64(side(t).GCs), side(t).Goroutines > 0 }
}

// levels draws values as they are; one that is not known is a gap.
func levels(name string, ticks []Tick, read reads) page.Series {
	s := page.Series{Name: name}
	for i := range ticks {
		v, ok := read(&ticks[i])
		if !ok {
			v = math.NaN()
		}
		s.X, s.Y = append(s.X, tenths(&ticks[i])), append(s.Y, rounded(v))
	}
	return s
}

// rate draws how much a counter grows a second. One that went back has begun anew, with
// another process: that is a gap.
func rate(name string, ticks []Tick, read reads) page.Series {
	return grown(name, ticks, read, func(_, now *Tick, more float64, past time.Duration) float64 { return more / past.Seconds() })
}

// meanTurn draws how long the turns of loops took on average.
func meanTurn(name string, ticks []Tick) page.Series {
	turns := func(k *Tick) (float64, bool) { return float64(k.Server.Turns), k.Server.Turns > 0 }
	return grown(name, ticks, turns, func(before, now *Tick, more float64, _ time.Duration) float64 {
		if more == 0 {
			return math.NaN()
		}
		return (now.Server.Lag - before.Server.Lag).Seconds() / more
	})
}

// grown draws what becomes of the growth of a counter between ticks at which it is known.
func grown(name string, ticks []Tick, read reads, becomes func(before, now *Tick, more float64, past time.Duration) float64) page.Series {
	s := page.Series{Name: name}
	var before *Tick
	for i := range ticks {
		now := &ticks[i]
		v, ok := read(now)
		if before != nil && now.At-before.At < shortestStep {
			continue
		}
		y := math.NaN()
		if ok && before != nil {
			was, _ := read(before)
			if v >= was {
				y = becomes(before, now, v-was, now.At-before.At)
			}
		}
		if ok {
			before = now
		}
		s.X, s.Y = append(s.X, tenths(now)), append(s.Y, rounded(y))
	}
	return s
}

// tenths is when a tick was, in seconds, to a tenth: so ticks of several runs are above each other,
// and take less in the page.
func tenths(t *Tick) float64 { return math.Round(t.At.Seconds()*10) / 10 }

// says says whether a series has anything but gaps and zeros.
func says(s page.Series) bool {
	for _, y := range s.Y {
		if !math.IsNaN(y) && y != 0 {
			return true
		}
	}
	return false
}
