package pacer

import (
	"math"
	"time"
)

// Never is a time that is later than all other times.
const Never = time.Duration(math.MaxInt64)

// maxCurveTime limits the time at which a message can be due, counted from RateCurve.Begin.
const maxCurveTime = 60 * 24 * time.Hour

// RateCurve defines the rate of messages as a function of time. All times are readings of the same clock, as durations
// since a fixed point in time. A RateCurve must not change while a plan uses it.
type RateCurve struct {
	// Begin is the earliest time at which a message can be due. It is above 0.
	Begin time.Duration
	// PerSecond is the number of messages due per second, above 0. If To is set, it is only the initial rate.
	PerSecond float64
	// Poisson makes the times between messages random, as in a Poisson process.
	Poisson bool
	// To is the final rate, or 0 for a constant rate. The rate stays at PerSecond for the duration Hold. It then
	// changes linearly, and reaches To after the duration Over.
	To         float64
	Hold, Over time.Duration
}

// DueTimeOrNever returns the time at which the message with the given number is due. Messages are numbered from 0. The
// number can have a fraction, for a time between two messages. The result is Never if the message is due 60 days or
// more after Begin. DueTimeOrNever is the inverse of CountMessagesDue.
func (c *RateCurve) DueTimeOrNever(messageNumber float64) time.Duration {
	seconds := messageNumber / c.PerSecond
	if c.To > 0 {
		seconds = c.secondsUntilDueWithRamp(messageNumber)
	}
	if seconds >= maxCurveTime.Seconds() {
		return Never
	}
	return c.Begin + time.Duration(seconds*float64(time.Second))
}

// secondsUntilDueWithRamp returns the time in seconds from Begin until the message with the given number is due. c.To
// must be set.
func (c *RateCurve) secondsUntilDueWithRamp(message float64) float64 {
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

// CountMessagesDue returns the number of messages due from c.Begin until the time end. The number is the integral of
// the rate and can have a fraction.
func (c *RateCurve) CountMessagesDue(end time.Duration) float64 {
	t, r := max(end-c.Begin, 0).Seconds(), c.PerSecond
	if c.To == 0 {
		return r * t
	}
	before, over := c.Hold.Seconds(), c.Over.Seconds()
	in := min(max(t-before, 0), over)
	return r*min(t, before) + r*in + (c.To-r)*in*in/(2*over) + c.To*max(t-before-over, 0)
}

// countDueBefore returns the number of messages that are due before the given time. It does not count messages
// with numbers below firstNumber.
func (c *RateCurve) countDueBefore(firstNumber float64, end time.Duration) int64 {
	if c.DueTimeOrNever(firstNumber) >= end {
		return 0
	}
	n := max(math.Floor(c.CountMessagesDue(min(end, c.Begin+maxCurveTime))-firstNumber), 1)
	// Times are whole nanoseconds and numbers have 53 bits, so the result can be wrong by 1: correct it.
	for range 2 {
		switch {
		case n > 1 && c.DueTimeOrNever(firstNumber+n-1) >= end:
			n--
		case c.DueTimeOrNever(firstNumber+n) < end:
			n++
		}
	}
	return int64(n)
}
