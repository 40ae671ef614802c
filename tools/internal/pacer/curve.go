package pacer

import (
	"math"
	"time"
)

// Never is a time that does not come.
const Never = time.Duration(math.MaxInt64)

// maxCurveTime bounds the times that a Curve knows.
const maxCurveTime = 60 * 24 * time.Hour

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

// TimeOf is the time by which x messages are due, the inverse of Due; Never from some two
// months on.
func (c *Curve) TimeOf(message float64) time.Duration {
	seconds := message / c.PerSecond
	if c.To > 0 {
		seconds = c.solveRamp(message)
	}
	if seconds >= maxCurveTime.Seconds() {
		return Never
	}
	return c.Begin + time.Duration(seconds*float64(time.Second))
}

// solveRamp solves a·t + (b-a)·t²/2T = x in the time T of the change, and goes on
// with the rate b behind it.
func (c *Curve) solveRamp(message float64) float64 {
	a, b := c.PerSecond, c.To
	before, over := c.Hold.Seconds(), c.Over.Seconds()
	if message <= a*before {
		return message / a
	}
	message -= a * before
	if within := (a + b) / 2 * over; message > within {
		return before + over + (message-within)/b
	}
	k := (b - a) / (2 * over)
	return before + 2*message/(a+math.Sqrt(max(a*a+4*k*message, 0)))
}

// CountDue is how many messages are due by a time, as the integral of the rate.
func (c *Curve) CountDue(by time.Duration) float64 {
	t, r := max(by-c.Begin, 0).Seconds(), c.PerSecond
	if c.To == 0 {
		return r * t
	}
	before, over := c.Hold.Seconds(), c.Over.Seconds()
	in := min(max(t-before, 0), over)
	return r*min(t, before) + r*in + (c.To-r)*in*in/(2*over) + c.To*max(t-before-over, 0)
}

// countBefore is how many messages are due before a time, where the next one is at x and the
// others follow one apart.
func (c *Curve) countBefore(first float64, end time.Duration) int64 {
	if c.TimeOf(first) >= end {
		return 0
	}
	n := max(math.Floor(c.CountDue(min(end, c.Begin+maxCurveTime))-first), 1)
	// Times are in whole nanoseconds, and numbers have 53 bits: it can be one more
	// or less.
	for range 2 {
		switch {
		case n > 1 && c.TimeOf(first+n-1) >= end:
			n--
		case c.TimeOf(first+n) < end:
			n++
		}
	}
	return int64(n)
}
