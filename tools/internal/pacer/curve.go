package pacer

import (
	"math"
	"time"
)

// Never is a time that does not come.
const Never = time.Duration(math.MaxInt64)

// farthest bounds the times that a Curve knows.
const farthest = 60 * 24 * time.Hour

// Curve is a rate over time. Times are of the clock that Begin is of. It does not change
// while there are Plans on it.
type Curve struct {
	// Begin is when the first message can be due, above 0.
	Begin time.Duration
	// PerSecond is how many messages are due in a second, above 0.
	PerSecond float64
	// Poisson has the times between messages be those of a Poisson process; otherwise
	// they are equal.
	Poisson bool
	// To, if it is above 0, is the rate to which it changes linearly, from Hold after
	// Begin on, in the time Over.
	To         float64
	Hold, Over time.Duration
}

// At is the time by which x messages are due, the inverse of Due; Never from some two
// months on.
func (c *Curve) At(x float64) time.Duration {
	seconds := x / c.PerSecond
	if c.To > 0 {
		seconds = c.atRamp(x)
	}
	if seconds >= farthest.Seconds() {
		return Never
	}
	return c.Begin + time.Duration(seconds*float64(time.Second))
}

// atRamp solves a·t + (b-a)·t²/2T = x in the time T of the change, and goes on
// with the rate b behind it.
func (c *Curve) atRamp(x float64) float64 {
	a, b := c.PerSecond, c.To
	before, over := c.Hold.Seconds(), c.Over.Seconds()
	if x <= a*before {
		return x / a
	}
	x -= a * before
	if within := (a + b) / 2 * over; x > within {
		return before + over + (x-within)/b
	}
	k := (b - a) / (2 * over)
	return before + 2*x/(a+math.Sqrt(max(a*a+4*k*x, 0)))
}

// Due is how many messages are due by a time, as the integral of the rate.
func (c *Curve) Due(by time.Duration) float64 {
	t, r := max(by-c.Begin, 0).Seconds(), c.PerSecond
	if c.To == 0 {
		return r * t
	}
	before, over := c.Hold.Seconds(), c.Over.Seconds()
	in := min(max(t-before, 0), over)
	return r*min(t, before) + r*in + (c.To-r)*in*in/(2*over) + c.To*max(t-before-over, 0)
}

// count is how many messages are due before a time, where the next one is at x and the
// others follow one apart.
func (c *Curve) count(x float64, end time.Duration) int64 {
	if c.At(x) >= end {
		return 0
	}
	n := max(math.Floor(c.Due(min(end, c.Begin+farthest))-x), 1)
	// Times are in whole nanoseconds, and numbers have 53 bits: it can be one more
	// or less.
	for range 2 {
		switch {
		case n > 1 && c.At(x+n-1) >= end:
			n--
		case c.At(x+n) < end:
			n++
		}
	}
	return int64(n)
}
