// Package stall is a server whose latency is known: lines are served one after the
// other, each takes a fixed time, and at fixed times nothing is served for a while.
// When a line is answered follows from when lines arrive, so that what a load
// generator says of such a server can be held against the truth: a queue with one
// server, constant service and vacations, as queueing theory calls them.
package stall

import (
	"fmt"
	"time"
)

// The bounds of a Plan.
const (
	// MaxTime bounds its times.
	MaxTime = time.Hour
	// MaxCapacity bounds its capacity: shorter services cannot be timed.
	MaxCapacity = 1_000_000
	// MinCapacity is the least capacity but 0: a service takes at most a minute.
	MinCapacity = 1.0 / 60
)

// Plan says what a server does when. All times are since its epoch, the moment of
// its start, and not negative. The zero Plan serves everything at once.
type Plan struct {
	// Capacity is how many lines a second are served: each takes exactly
	// 1/Capacity, rounded to nanoseconds. 0 is no time at all.
	Capacity float64
	// Stall is how long a stall takes, and Every the time from the beginning of
	// one to that of the next: nothing is served in [k·Every, k·Every+Stall), for
	// k = 0, 1, 2 and so on. A Stall of 0 is no stalls; Every is then not looked at.
	Stall, Every time.Duration
}

// Check says what is wrong with the plan.
func (p Plan) Check() error {
	switch {
	case !(p.Capacity == 0 || p.Capacity >= MinCapacity && p.Capacity <= MaxCapacity):
		return fmt.Errorf("stall: capacity of %v lines a second; expected 0, for no bound, or 1 a minute to %d a second", p.Capacity, MaxCapacity)
	case p.Stall < 0 || p.Stall > MaxTime:
		return fmt.Errorf("stall: stalls of %v; expected 0s to %v", p.Stall, MaxTime)
	case p.Stall > 0 && (p.Every <= p.Stall || p.Every > MaxTime):
		return fmt.Errorf("stall: stalls of %v every %v; expected more than they take, and at most %v", p.Stall, p.Every, MaxTime)
	}
	return nil
}

// ServiceTime is how long the service of a line takes, stalls left out.
func (p Plan) ServiceTime() time.Duration {
	if p.Capacity == 0 {
		return 0
	}
	return time.Duration(float64(time.Second)/p.Capacity + 0.5)
}

// ServiceEnd is when the service of a line ends that could begin at a time: one that would
// begin in a stall begins at its end, and one that a stall comes upon is interrupted
// and goes on after it. A service that ends at the moment at which a stall begins has
// ended.
func (p Plan) ServiceEnd(start time.Duration) time.Duration {
	left := p.ServiceTime()
	if p.Stall == 0 {
		return start + left
	}
	stall := start - start%p.Every // when the last one began
	start = max(start, stall+p.Stall)
	if until := stall + p.Every; left > until-start {
		left -= until - start
		open := p.Every - p.Stall
		whole := (left - 1) / open // times between stalls that it takes wholly
		left -= whole * open
		start = until + time.Duration(whole)*p.Every + p.Stall
	}
	return start + left
}

// Latencies is the latency of each of the lines that arrive at given times, in that
// order: the time it waits and the time it is served. Lines are served first in,
// first out; arrivals must not decrease.
func (p Plan) Latencies(arrivals []time.Duration) []time.Duration {
	latencies := make([]time.Duration, len(arrivals))
	var free time.Duration // when the last service ends
	for i, at := range arrivals {
		free = p.ServiceEnd(max(at, free))
		latencies[i] = free - at
	}
	return latencies
}
