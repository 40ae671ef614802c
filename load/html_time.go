package load

import (
	"html/template"
	"math"
	"slices"
	"strings"
	"time"
)

// mostPlaces bounds the points of a curve over time; neighbouring intervals are
// joined until there are no more.
const mostPlaces = 400

// figure is a chart with its title and the names of its curves.
type figure struct {
	Title, Note string
	Keys        []curveKey
	Drawings    []template.HTML
	// Timed says that its x axis is the run's time.
	Timed bool
}

// curveKey names a curve.
type curveKey struct {
	Class, Name string
	// values are those of the curve, text how they are written.
	values []float64
	text   func(float64) string
}

// timeline is what the charts over the time of a run have in common.
type timeline struct {
	intervals []Interval
	places    []float64
	shade     []band
	joined    bool
}

func newTimeline(s *Stream) *timeline {
	t := &timeline{intervals: fold(s.Intervals, mostPlaces)}
	t.joined = len(t.intervals) < len(s.Intervals)
	for _, i := range t.intervals {
		t.places = append(t.places, float64(i.From+i.To)/2)
	}
	t.shade = outside(s.Intervals, s.Span())
	return t
}

// outside is the time that isn't in the window: before the first interval of it
// and after the last one. There is none without a window.
func outside(intervals []Interval, span time.Duration) []band {
	is := func(i Interval) bool { return i.Stage == "window" }
	first := slices.IndexFunc(intervals, is)
	if first < 0 {
		return nil
	}
	last := first
	for n, i := range intervals {
		if is(i) {
			last = n
		}
	}
	both := []band{{0, float64(intervals[first].From)}, {float64(intervals[last].To), float64(span)}}
	return slices.DeleteFunc(both, func(b band) bool { return b.to <= b.from })
}

// values are a figure of each interval.
func (t *timeline) values(of func(*Interval) float64) []float64 {
	all := make([]float64, len(t.intervals))
	for i := range t.intervals {
		all[i] = of(&t.intervals[i])
	}
	return all
}

// perSecond are counts of each interval as a rate.
func (t *timeline) perSecond(of func(*Interval) int64) []float64 {
	return t.values(func(i *Interval) float64 { return i.perSecond(of(i)) })
}

// figures are all charts over time that have something to show.
func (t *timeline) figures(openLoop bool) []figure {
	if len(t.intervals) == 0 {
		return nil
	}
	all := []figure{t.rates(), t.latency(openLoop), t.errors(), t.flying(), t.connections(), t.connects(), t.cpu(), t.memory()}
	return slices.DeleteFunc(all, func(f figure) bool { return len(f.Keys) == 0 })
}

func (t *timeline) rates() figure {
	f := figure{Title: "Messages a second"}
	f.add("c-plan", "intended", t.perSecond(func(i *Interval) int64 { return i.Intended }), perSecondText)
	f.add("c-sent", "sent", t.perSecond(func(i *Interval) int64 { return i.Sent }), perSecondText)
	f.add("c-answered", "answered", t.perSecond(func(i *Interval) int64 { return i.Answered }), perSecondText)
	return t.linear(f, 240, 1, shortCount)
}

func (t *timeline) latency(openLoop bool) figure {
	f := figure{Title: "Latency", Note: "from when a message was handed to its connection to the end of its answer; log scale"}
	if openLoop {
		f.Note = "from when a message was to be sent to the end of its answer; log scale"
	}
	if t.joined {
		f.Note += "; the worst of each few intervals"
	}
	lowest, highest := math.Inf(1), 0.0
	for _, p := range []struct{ class, name, point string }{
		{"c-max", "max", "max"}, {"c-p999", "p99.9", "p99.9"}, {"c-p99", "p99", "p99"}, {"c-p90", "p90", "p90"}, {"c-p50", "p50", "p50"},
	} {
		f.add(p.class, p.name, t.values(func(i *Interval) float64 {
			if i.Latency.Count == 0 {
				return math.NaN()
			}
			v := max(float64(latencyPoints[p.point](&i.Latency)), 1)
			lowest, highest = min(lowest, v), max(highest, v)
			return v
		}), timeText)
	}
	if highest == 0 {
		return figure{}
	}
	return t.finish(f, 280, logAxis(lowest, highest, 10, timeText))
}

func (t *timeline) connections() figure {
	f := figure{Title: "Connections"}
	f.add("c-open", "open", t.values(func(i *Interval) float64 { return float64(i.Open) }), wholeText)
	return t.linear(f, 150, 1, shortCount)
}

func (t *timeline) connects() figure {
	f := figure{Title: "Connects a second"}
	f.add("c-plan", "closed", t.perSecond(func(i *Interval) int64 { return i.Closed }), perSecondText)
	f.add("c-open", "established", t.perSecond(func(i *Interval) int64 { return i.Opened }), perSecondText)
	return t.linear(f, 150, 1, shortCount)
}

func (t *timeline) errors() figure {
	f := figure{Title: "Errors a second"}
	f.add("c-errors", "other errors", t.perSecond(func(i *Interval) int64 { return i.errors() - i.Failed - i.Lost }), perSecondText)
	f.add("c-lost", "lost connections", t.perSecond(func(i *Interval) int64 { return i.Lost }), perSecondText)
	f.add("c-failed", "failed to connect", t.perSecond(func(i *Interval) int64 { return i.Failed }), perSecondText)
	return t.linear(f, 150, 1, shortCount)
}

func (t *timeline) flying() figure {
	f := figure{Title: "Messages in flight"}
	f.add("c-sent", "in flight", t.values(func(i *Interval) float64 { return float64(i.Flying) }), wholeText)
	f.add("c-lost", "queued", t.values(func(i *Interval) float64 { return float64(i.Waiting) }), wholeText)
	return t.linear(f, 150, 1, shortCount)
}

func (t *timeline) cpu() figure {
	f := figure{Title: "CPU", Note: "% of a CPU"}
	share := func(u *Usage, i *Interval) float64 {
		if u == nil {
			return math.NaN()
		}
		return 100 * i.perSecond(int64(u.CPU)) / float64(time.Second)
	}
	text := func(v float64) string { return shortFloat(v) + "\u00a0%" }
	f.add("c-server", "server", t.values(func(i *Interval) float64 { return share(i.Server, i) }), text)
	f.add("c-generator", "generator", t.values(func(i *Interval) float64 { return share(&i.Generator, i) }), text)
	return t.linear(f, 150, 1, func(v float64) string { return shortFloat(v) + "\u00a0%" })
}

func (t *timeline) memory() figure {
	f := figure{Title: "Memory", Note: "RSS"}
	resident := func(u *Usage) float64 {
		if u == nil || u.Resident == 0 {
			return math.NaN()
		}
		return float64(u.Resident)
	}
	f.add("c-server", "server", t.values(func(i *Interval) float64 { return resident(i.Server) }), spacedBytes)
	f.add("c-generator", "generator", t.values(func(i *Interval) float64 { return resident(&i.Generator) }), spacedBytes)
	unit, size := byteUnit(f.highest())
	for k := range f.Keys {
		for i := range f.Keys[k].values {
			f.Keys[k].values[i] /= size
		}
		f.Keys[k].text = func(v float64) string { return spacedBytes(v * size) }
	}
	return t.linear(f, 150, 0.001, func(v float64) string {
		if v == 0 {
			return "0"
		}
		return shortFloat(v) + "\u00a0" + unit
	})
}

// add adds a curve that has anything but zeros.
func (f *figure) add(class, name string, values []float64, text func(float64) string) {
	if slices.ContainsFunc(values, func(v float64) bool { return v > 0 }) {
		f.Keys = append(f.Keys, curveKey{class, name, values, text})
	}
}

// highest is the largest value of all curves.
func (f *figure) highest() float64 {
	highest := 0.0
	for _, k := range f.Keys {
		for _, v := range k.values {
			if v > highest {
				highest = v
			}
		}
	}
	return highest
}

// linear draws a figure with an axis from 0 on.
func (t *timeline) linear(f figure, height int, least float64, text func(float64) string) figure {
	if len(f.Keys) == 0 {
		return figure{}
	}
	return t.finish(f, height, linearAxis(f.highest(), least, height/40, text))
}

// finish draws a figure.
func (t *timeline) finish(f figure, height int, y axis) figure {
	f.Timed = true
	c := chart{y: y, shade: t.shade, height: height}
	var names []string
	for _, k := range f.Keys {
		c.lines = append(c.lines, curve{class: k.Class, places: t.places, values: k.values, area: len(c.lines) == len(f.Keys)-1 && !y.log})
		names = append(names, k.Name)
	}
	c.label = f.Title + " over time: " + strings.Join(names, ", ")
	span := t.intervals[len(t.intervals)-1].To
	for _, width := range chartWidths {
		c.x = timeAxis(span, width/70)
		f.Drawings = append(f.Drawings, c.draw(width))
	}
	return f
}

func timeText(v float64) string  { return spaced(time.Duration(v)) }
func wholeText(v float64) string { return group(int64(v)) }

// perSecondText is a rate, with digits after the point where it is small.
func perSecondText(v float64) string {
	if v >= 100 {
		return group(int64(math.Round(v)))
	}
	return shortFloat(v)
}
