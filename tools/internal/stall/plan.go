// Package stall implements a server whose latency is known. The server serves lines one after the other, each in a
// fixed time, and stalls at fixed times. The arrival times of lines therefore determine the times of the answers.
// Latencies measured by a load generator can be compared with these true latencies. In queueing theory, the server is a
// queue with one server, constant service time and vacations.
package stall

import (
	"fmt"
	"time"
)

const (
	MaxTime = time.Hour
	// MaxCapacity limits the capacity of a plan, because the clock cannot measure shorter service times.
	MaxCapacity = 1_000_000
	// MinCapacity is the lowest capacity other than 0. It corresponds to a service time of one minute.
	MinCapacity = 1.0 / 60
)

// StallPlan defines how long a server needs for each line, and when it stalls. During a stall, the server serves no
// lines. The arguments of the methods are times since the start of the server. These times must not be negative. With
// the zero StallPlan, the server serves each line immediately.
type StallPlan struct {
	// Capacity is the number of lines served per second. Serving a line takes 1/Capacity seconds, rounded to
	// nanoseconds. If Capacity is 0, serving takes no time.
	Capacity float64
	// Stall is the duration of a stall. Every is the time from the beginning of one stall to the beginning of the next.
	// No line is served in [k·Every, k·Every+Stall) for k = 0, 1, 2 and so on. If Stall is 0, there are no stalls and
	// Every is ignored.
	Stall, Every time.Duration
}

// Check returns an error if the plan is invalid.
func (p StallPlan) Check() error {
	switch {
	case !(p.Capacity == 0 || p.Capacity >= MinCapacity && p.Capacity <= MaxCapacity):
		return fmt.Errorf("stall: capacity is %v lines a second; expected 0 for no limit, or 1 a minute to %d a second", p.Capacity, MaxCapacity)
	case p.Stall < 0 || p.Stall > MaxTime:
		return fmt.Errorf("stall: length is %v; expected 0s to %v", p.Stall, MaxTime)
	case p.Stall > 0 && (p.Every <= p.Stall || p.Every > MaxTime):
		return fmt.Errorf("stall: interval is %v with stalls of %v; expected more than %[2]v and at most %[3]v", p.Every, p.Stall, MaxTime)
	}
	return nil
}

// TimePerLine returns how long the server takes to serve one line if it does not stall.
func (p StallPlan) TimePerLine() time.Duration {
	if p.Capacity == 0 {
		return 0
	}
	return time.Duration(float64(time.Second)/p.Capacity + 0.5)
}

// EndOfServiceFrom returns the time at which the server finishes a line. start is the earliest time at which the server
// can begin to serve the line. If the server is stalled at that time, it begins when the stall ends. If a stall begins
// while the line is being served, the server continues with the line after the stall.
func (p StallPlan) EndOfServiceFrom(start time.Duration) time.Duration {
	left := p.TimePerLine()
	if p.Stall == 0 {
		return start + left
	}
	stall := start - start%p.Every // beginning of the last stall
	start = max(start, stall+p.Stall)
	if until := stall + p.Every; left > until-start {
		left -= until - start
		open := p.Every - p.Stall
		whole := (left - 1) / open // number of intervals between stalls that the service uses completely
		left -= whole * open
		start = until + time.Duration(whole)*p.Every + p.Stall
	}
	return start + left
}

// PredictLatencies returns the latency of each line, which is the time from the arrival of the line until the server
// has served it. Each arrival time must be at least as late as the one before. The server serves lines in the order of
// arrival.
func (p StallPlan) PredictLatencies(arrivals []time.Duration) []time.Duration {
	latencies := make([]time.Duration, len(arrivals))
	var free time.Duration // end of the last service
	for i, at := range arrivals {
		free = p.EndOfServiceFrom(max(at, free))
		latencies[i] = free - at
	}
	return latencies
}
