package pacer

import (
	"math"
	"time"
)

// Never is a time that does not come.
const Never = time.Duration(math.MaxInt64)

// maxCurveTime limits the times of a Curve.
const maxCurveTime = 60 * 24 * time.Hour

// RateCurve is a rate over time. All times are on the clock of Begin. A Curve must not change while
// Plans use it.
type RateCurve struct {
	// Begin is when the first message can be due, above 0.
	Begin time.Duration
	// PerSecond is the number of messages that become due per second, above 0.
	PerSecond float64
	// Poisson makes the messages a Poisson process; otherwise the times between them are equal.
	Poisson bool
	// To, if above 0, is the final rate. The rate changes linearly, from Hold after Begin on, for
	// the time Over.
	To         float64
	Hold, Over time.Duration
}

// DueTimeOfMessage returns when a number of messages are due, the inverse of CountMessagesDue; Never from about two
// months on.
func (c *RateCurve) DueTimeOfMessage(messageNumber float64) time.Duration {
	seconds := messageNumber / c.PerSecond
	if c.To > 0 {
		seconds = c.secondsUntilDueOnRamp(messageNumber)
	}
	if seconds >= maxCurveTime.Seconds() {
		return Never
	}
	return c.Begin + time.Duration(seconds*float64(time.Second))
}

// secondsUntilDueOnRamp returns the time t in seconds at which a number of messages x are due. During the
// change of duration T it solves a·t + (b-a)·t²/2T = x; after it the rate is b.
func (c *RateCurve) secondsUntilDueOnRamp(message float64) float64 {
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

// CountMessagesDue returns how many messages are due by a time: the integral of the rate.
func (c *RateCurve) CountMessagesDue(deadline time.Duration) float64 {
	t, r := max(deadline-c.Begin, 0).Seconds(), c.PerSecond
	if c.To == 0 {
		return r * t
	}
	before, over := c.Hold.Seconds(), c.Over.Seconds()
	in := min(max(t-before, 0), over)
	return r*min(t, before) + r*in + (c.To-r)*in*in/(2*over) + c.To*max(t-before-over, 0)
}

// countMessagesBefore returns how many messages are due before end, if the next one is number first and the
// others follow one apart.
func (c *RateCurve) countMessagesBefore(nextNumber float64, end time.Duration) int64 {
	if c.DueTimeOfMessage(nextNumber) >= end {
		return 0
	}
	n := max(math.Floor(c.CountMessagesDue(min(end, c.Begin+maxCurveTime))-nextNumber), 1)
	// Times are whole nanoseconds, and numbers have 53 bits: correct an error of 1.
	for range 2 {
		switch {
		case n > 1 && c.DueTimeOfMessage(nextNumber+n-1) >= end:
			n--
		case c.DueTimeOfMessage(nextNumber+n) < end:
			n++
		}
	}
	return int64(n)
}
