// Package stall is a server with known latency: it serves lines one after the other, each takes a
// fixed time, and at fixed times it stalls. The arrival times of lines determine when each is
// answered, so the measurements of a load generator can be compared with the truth. In queueing
// theory it is a queue with one server, constant service time and vacations.
package stall

import (
	"fmt"
	"time"
)

// Limits of a Plan.
const (
	// MaxTime limits its times.
	MaxTime = time.Hour
	// MaxCapacity limits its capacity: shorter service times cannot be timed.
	MaxCapacity = 1_000_000
	// MinCapacity is the lowest capacity other than 0: a service time of one minute.
	MinCapacity = 1.0 / 60
)

// StallPlan defines the service and the stalls of a server. All times are since its start and not
// negative. The zero Plan serves everything immediately.
type StallPlan struct {
	// Capacity is how many lines a second are served: each takes exactly 1/Capacity, rounded to
	// nanoseconds. 0 is unlimited.
	Capacity float64
	// Stall is the duration of a stall, and Every the time from the beginning of one stall to the
	// next: nothing is served in [k·Every, k·Every+Stall) for k = 0, 1, 2 and so on. A Stall of 0
	// is no stalls; Every is then ignored.
	Stall, Every time.Duration
}

// Check returns an error if the plan is invalid.
func (p StallPlan) Check() error {
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

// TimePerLine returns how long the service of a line takes, without stalls.
func (p StallPlan) TimePerLine() time.Duration {
	if p.Capacity == 0 {
		return 0
	}
	return time.Duration(float64(time.Second)/p.Capacity + 0.5)
}

// EndOfServiceFrom returns when the service of a line ends that can begin at start. A service that would
// begin in a stall begins at its end, and a stall interrupts a service. A service that ends when a
// stall begins is complete.
func (p StallPlan) EndOfServiceFrom(start time.Duration) time.Duration {
	left := p.TimePerLine()
	if p.Stall == 0 {
		return start + left
	}
	stall := start - start%p.Every // when the last stall began
	start = max(start, stall+p.Stall)
	if until := stall + p.Every; left > until-start {
		left -= until - start
		open := p.Every - p.Stall
		whole := (left - 1) / open // times between stalls that it uses completely
		left -= whole * open
		start = until + time.Duration(whole)*p.Every + p.Stall
	}
	return start + left
}

// PredictLatencies returns the latency of each line, waiting and service together, given the arrival
// times. Lines are served first in, first out; arrivals must not decrease.
func (p StallPlan) PredictLatencies(arrivals []time.Duration) []time.Duration {
	latencies := make([]time.Duration, len(arrivals))
	var free time.Duration // when the last service ends
	for i, at := range arrivals {
		free = p.EndOfServiceFrom(max(at, free))
		latencies[i] = free - at
	}
	return latencies
}
