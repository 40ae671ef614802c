package load

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// tick is a mark on an axis.
type tick struct {
	at   float64 // the value
	text string
}

// axis maps values to pixels.
type axis struct {
	from, to float64 // values
	low, top float64 // pixels of them
	log      bool
	ticks    []tick
}

// at is the pixel of a value; one that is off the axis is at its end.
func (a axis) at(v float64) float64 {
	from, to := a.from, a.to
	v = min(max(v, from), to)
	if a.log {
		from, to, v = math.Log10(from), math.Log10(to), math.Log10(v)
	}
	if to <= from {
		return a.low
	}
	return a.low + (v-from)/(to-from)*(a.top-a.low)
}

// linearAxis reaches from 0 to a round number that is not less than highest, in
// at most so many steps, each 1, 2 or 5 times a power of ten, and at least least.
func linearAxis(highest, least float64, steps int, text func(value float64) string) axis {
	step := roundStep(max(highest, least)/float64(steps), least)
	a := axis{}
	for n := 0; ; n++ {
		v := float64(n) * step
		a.ticks = append(a.ticks, tick{v, text(v)})
		if a.to = v; n > 0 && v >= highest || n > 2*steps {
			return a
		}
	}
}

// roundStep is the smallest 1, 2 or 5 times a power of ten that is not less.
func roundStep(step, least float64) float64 {
	step = max(step, least, 1e-9)
	power := math.Pow(10, math.Floor(math.Log10(step)))
	for _, factor := range []float64{1, 2, 5} {
		if factor*power >= step*(1-1e-9) {
			return factor * power
		}
	}
	return 10 * power
}

// logAxis reaches over values of more than 0, with ticks at 1, 2 and 5 times
// powers of ten where there is room for them, else at powers of ten.
func logAxis(lowest, highest float64, most int, text func(float64) string) axis {
	lowest = max(lowest, 1)
	highest = max(highest, lowest)
	for _, factors := range [][]float64{{1, 2, 5}, {1, 3}, {1}} {
		a := logTicks(lowest, highest, factors, text)
		if len(a.ticks) <= most || len(factors) == 1 {
			return a
		}
	}
	panic("unreachable")
}

func logTicks(lowest, highest float64, factors []float64, text func(float64) string) axis {
	a := axis{log: true}
	for power := math.Pow(10, math.Floor(math.Log10(lowest))); ; power *= 10 {
		for n, factor := range factors {
			v := factor * power
			next := 10 * power
			if n+1 < len(factors) {
				next = factors[n+1] * power
			}
			if next <= lowest*(1+1e-9) {
				continue
			}
			a.ticks = append(a.ticks, tick{v, text(v)})
			if len(a.ticks) > 1 && v >= highest*(1-1e-9) {
				a.from, a.to = a.ticks[0].at, v
				return a
			}
		}
	}
}

// timeSteps are the round steps of a time axis; days follow.
var timeSteps = []time.Duration{
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour,
}

// timeAxis reaches over the whole of a run, with at most so many ticks.
func timeAxis(span time.Duration, most int) axis {
	step := 24 * time.Hour * time.Duration(roundStep(span.Hours()/24/float64(most), 1))
	for _, s := range timeSteps {
		if span/s < time.Duration(most) {
			step = s
			break
		}
	}
	a := axis{to: float64(max(span, time.Millisecond))}
	for t := time.Duration(0); t <= span; t += step {
		a.ticks = append(a.ticks, tick{float64(t), shortTime(t)})
	}
	return a
}

// roundTime is a duration of three digits or so: 1m30s, 2h, 500ms.
func roundTime(d time.Duration) string { return shortTime(round(d)) }

// shortTime writes a duration without parts of nothing: 1m30s, 2h, 500ms.
func shortTime(d time.Duration) string {
	text := ""
	if h := d / time.Hour; h > 0 {
		text = strconv.FormatInt(int64(h), 10) + "h"
	}
	if m := d % time.Hour / time.Minute; m > 0 {
		text += strconv.FormatInt(int64(m), 10) + "m"
	}
	switch rest := d % time.Minute; {
	case d == 0:
		return "0"
	case rest > 0:
		text += rest.String()
	}
	return text
}

// spaced is a duration of three digits with its unit apart: 1.23 ms. There are
// no minutes: 90 s.
func spaced(d time.Duration) string {
	if d >= time.Minute {
		return shortFloat(d.Seconds()) + "\u00a0s"
	}
	text := round(d).String()
	at := strings.LastIndexAny(text, "0123456789") + 1
	return text[:at] + "\u00a0" + text[at:]
}

// shortCount writes 1234567 as 1.23M, for axes.
func shortCount(v float64) string {
	for _, u := range []struct {
		unit string
		size float64
	}{{"G", 1e9}, {"M", 1e6}, {"k", 1e3}} {
		if v >= u.size {
			return shortFloat(v/u.size) + u.unit
		}
	}
	return shortFloat(v)
}

// shortFloat has three digits at most.
func shortFloat(v float64) string {
	if v >= 1000 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 3, 64), 64)
	return strconv.FormatFloat(rounded, 'f', -1, 64)
}

// byteUnits are what bytes are counted in, the largest first.
var byteUnits = []struct {
	name string
	size float64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// byteUnit is the largest unit in which a size is 1 or more.
func byteUnit(n float64) (name string, size float64) {
	for _, u := range byteUnits {
		if n >= u.size {
			return u.name, u.size
		}
	}
	return "B", 1
}

// spacedBytes is a size of three digits with its unit.
func spacedBytes(n float64) string {
	name, size := byteUnit(n)
	return shortFloat(n/size) + "\u00a0" + name
}
