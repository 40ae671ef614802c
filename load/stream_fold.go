package load

import (
	"maps"
	"slices"
	"time"
)

// fold joins neighbours until at most so many intervals are left, in equal
// parts of the time. Counts add up, of percentiles the worst is kept.
func fold(intervals []Interval, most int) []Interval {
	if len(intervals) <= most {
		return intervals
	}
	span := intervals[len(intervals)-1].To
	var folded []Interval
	last := -1
	for _, i := range intervals {
		part := min(int(float64(i.From)/float64(max(span, 1))*float64(most)), most-1)
		if part != last {
			i.Errors = maps.Clone(i.Errors)
			folded = append(folded, i)
			last = part
			continue
		}
		joinInterval(&folded[len(folded)-1], i)
	}
	return folded
}

// joinInterval adds the interval that follows on another. What is counted at the end of
// an interval is that of the later one.
func joinInterval(to *Interval, next Interval) {
	to.To, to.Stage = next.To, next.Stage
	to.Open, to.Flying, to.Waiting = next.Open, next.Flying, next.Waiting
	to.addCounts(next)
	server := next.Server
	if to.Server != nil && next.Server != nil {
		sum := *next.Server
		sum.CPU += to.Server.CPU
		server = &sum
	}
	to.Server = server
	next.Generator.CPU += to.Generator.CPU
	to.Generator = next.Generator
}

// addCounts adds what another interval counts.
func (i *Interval) addCounts(o Interval) {
	i.Errors = addCauses(i.Errors, o.Errors)
	i.Latency = addLatency(i.Latency, o.Latency)
	i.Connect = addLatency(i.Connect, o.Connect)
	for _, f := range []struct{ to, from *int64 }{
		{&i.Opened, &o.Opened}, {&i.Failed, &o.Failed}, {&i.Lost, &o.Lost}, {&i.Closed, &o.Closed},
		{&i.Intended, &o.Intended}, {&i.Sent, &o.Sent}, {&i.Answered, &o.Answered},
		{&i.BytesSent, &o.BytesSent}, {&i.BytesReceived, &o.BytesReceived},
		{&i.Heartbeats, &o.Heartbeats}, {&i.Heard, &o.Heard}, {&i.Strange, &o.Strange},
	} {
		*f.to += *f.from
	}
}

// mergeIntervals lays the intervals of several generators over those of the
// first: each is counted where its middle is, by the clocks of their machines,
// and not at all after the first's end. The server's usage is what the first saw.
func mergeIntervals(streams []*Stream) []Interval {
	first := streams[0]
	merged := slices.Clone(first.Intervals)
	for n := range merged {
		merged[n].Errors = maps.Clone(merged[n].Errors)
	}
	for _, s := range streams[1:] {
		var ahead time.Duration
		if s.Plan != nil && first.Plan != nil {
			ahead = s.Plan.Start.Sub(first.Plan.Start)
		}
		overlay(merged, s.Intervals, ahead)
	}
	return merged
}

// overlay adds the intervals of a generator that began later by ahead. Where two
// of them fall into one, what is counted at an end is that of the former.
func overlay(merged, intervals []Interval, ahead time.Duration) {
	at, was := 0, -1
	for _, i := range intervals {
		middle := ahead + i.From + (i.To-i.From)/2
		for at < len(merged) && merged[at].To < middle {
			at++
		}
		if at == len(merged) {
			return
		}
		m := &merged[at]
		m.addCounts(i)
		m.Generator.CPU += i.Generator.CPU
		if at == was {
			continue
		}
		was = at
		m.Open += i.Open
		m.Flying += i.Flying
		m.Waiting += i.Waiting
		m.Generator.Resident += i.Generator.Resident
		m.Generator.Descriptors += i.Generator.Descriptors
		m.Generator.Goroutines += i.Generator.Goroutines
		m.Generator.GCs += i.Generator.GCs
		m.Generator.GCPause += i.Generator.GCPause
	}
}
