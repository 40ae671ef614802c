package load

import (
	"math"
	"strconv"
	"time"
)

// distribution is the chart of latency by percentile. Its x axis is as in the
// plots of HdrHistogram: each decade is another nine, so that the tail has as
// much room as the rest.
func (s *Stream) distribution() figure {
	r := s.Result
	if r == nil || r.Latency.Count == 0 {
		return figure{}
	}
	f := figure{Title: "Latency by percentile", Note: "each step to the right is another nine; log scale"}
	curves := []curve{s.latencyCurve()}
	f.Keys = []curveKey{{Class: "c-p99", Name: "latency"}}
	if r.Corrected {
		f.Keys[0].Name = "since the message was to be sent"
	}
	if r.Service != nil && r.Service.Count > 0 {
		curves = append(curves, fieldCurve("c-service", *r.Service))
		f.Keys = append(f.Keys, curveKey{Class: "c-service", Name: "since it was sent (what a closed loop would have said)"})
		f.Note += ". Of 100 messages one took more than " + spaced(r.Latency.P99) + "; a closed loop would have said " + spaced(r.Service.P99)
	}
	lowest, highest, far := math.Inf(1), 0.0, 0.0
	for _, l := range curves {
		lowest, highest = min(lowest, l.values[0]), max(highest, l.values[len(l.values)-1])
		far = max(far, l.places[len(l.places)-1])
	}
	c := chart{
		label: f.Title, lines: curves, height: 300, x: ninesAxis(far),
		y: logAxis(lowest, highest, 10, timeText),
	}
	for _, width := range chartWidths {
		f.Drawings = append(f.Drawings, c.draw(width))
	}
	return f
}

// ninesAxis reaches from the smallest value to one in so many.
func ninesAxis(far float64) axis {
	a := axis{log: true, from: 1, to: max(far, 10), ticks: []tick{{1, "min"}, {2, "50\u00a0%"}}}
	for nines := 1; math.Pow10(nines) <= a.to; nines++ {
		text := strconv.FormatFloat(100-math.Pow10(2-nines), 'f', max(nines-2, 0), 64)
		a.ticks = append(a.ticks, tick{math.Pow10(nines), text + "\u00a0%"})
	}
	return a
}

// latencyCurve is the latency by percentile: all of it with a histogram, else the
// percentiles that there are.
func (s *Stream) latencyCurve() curve {
	if s.histogram == nil || s.histogram.TotalCount() == 0 {
		return fieldCurve("c-p99", s.Result.Latency)
	}
	l := curve{class: "c-p99"}
	const pointsPerNine = 24
	count := float64(s.histogram.TotalCount())
	for n := 0; ; n++ {
		one := math.Pow(10, float64(n)/pointsPerNine) // in so many
		if one > count {
			break
		}
		l.add(one, time.Duration(s.histogram.ValueAtPercentile(100-100/one)))
	}
	l.add(count, time.Duration(s.histogram.Max()))
	return l
}

// fieldCurve is drawn through the percentiles that a Latency has.
func fieldCurve(class string, d Latency) curve {
	l := curve{class: class}
	l.add(1, d.Min)
	for _, p := range []struct {
		one   float64
		value time.Duration
	}{{2, d.P50}, {4, d.P75}, {10, d.P90}, {20, d.P95}, {100, d.P99}, {1000, d.P999}, {10000, d.P9999}} {
		if p.one < float64(d.Count) {
			l.add(p.one, p.value)
		}
	}
	l.add(float64(d.Count), d.Max)
	return l
}

// add appends a point; there is no 0 on a log axis.
func (l *curve) add(place float64, value time.Duration) {
	l.places = append(l.places, place)
	l.values = append(l.values, max(float64(value), 1))
}
