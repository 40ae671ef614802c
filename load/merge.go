package load

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// MergeStreams makes one run of the runs of several generators that loaded the
// same servers at the same time. Counts and rates add up. Latency is that of all
// answers, read off the merged histograms; of Service, Late, Connect and
// FirstByte, and of each interval, there is no histogram, so that their
// percentiles are the worst of any generator. Runs that are cut off, that were
// not at the same time by the clocks of their machines, or whose modes differ
// are refused.
func MergeStreams(streams ...*Stream) (*Stream, error) {
	if len(streams) == 0 {
		return nil, errors.New("load: merge of no streams; expected one or more")
	}
	for i, s := range streams {
		if err := s.mergeable(streams[0]); err != nil {
			return nil, fmt.Errorf("load: merge: stream %d: %w", i+1, err)
		}
	}
	all, err := mergeResults(streams)
	if err != nil {
		return nil, err
	}
	merged := &Stream{Plan: mergePlans(streams), Marks: streams[0].Marks, Result: all}
	merged.Intervals = mergeIntervals(streams)
	for _, s := range streams {
		merged.Last.Open += s.Last.Open
		merged.Last.Failed += s.Last.Failed
		merged.Last.Sent += s.Last.Sent
		merged.Last.Answered += s.Last.Answered
	}
	merged.histogram, err = decodeHistogram(all.Histogram)
	return merged, err
}

// mergeable says what keeps a stream from being merged with the first one.
func (s *Stream) mergeable(first *Stream) error {
	switch {
	case !s.Complete():
		return errors.New("it is cut off; expected complete runs")
	case !first.Complete():
		return nil // which is said of the first
	case s.Result.Mode != first.Result.Mode:
		return fmt.Errorf("mode %q; expected %q as in the first", s.Result.Mode, first.Result.Mode)
	case s.Result.Corrected != first.Result.Corrected:
		return errors.New("only one of its latency and the first's is corrected; expected both or none")
	case s.Result.Latency.Count > 0 && s.histogram == nil:
		return errors.New("no histogram; expected one, to merge latencies")
	case s.Plan == nil || first.Plan == nil:
		return nil
	case !s.Plan.Start.Before(first.Plan.Start.Add(first.Span())) && s != first,
		!first.Plan.Start.Before(s.Plan.Start.Add(s.Span())) && s != first:
		return fmt.Errorf("it ran from %v on for %v; expected at the time of the first, from %v on for %v",
			s.Plan.Start.Format(time.DateTime), round(s.Span()), first.Plan.Start.Format(time.DateTime), round(first.Span()))
	}
	return nil
}

// mergePlans is what they planned together.
func mergePlans(streams []*Stream) *Plan {
	if streams[0].Plan == nil {
		return nil
	}
	all := *streams[0].Plan
	all.Targets = nil
	var hosts []string
	all.Connections, all.Sources, all.Loops, all.Rate = 0, 0, 0, nil
	for _, s := range streams {
		p := s.Plan
		if p == nil {
			continue
		}
		if p.Start.Before(all.Start) {
			all.Start = p.Start
		}
		all.Targets = appendNew(all.Targets, p.Targets...)
		hosts = appendNew(hosts, p.Host)
		all.Connections += p.Connections
		all.Sources += p.Sources
		all.Loops += p.Loops
		all.Duration = max(all.Duration, p.Duration)
		all.Rate = addRates(all.Rate, p.Rate)
	}
	all.Host = strings.Join(hosts, "; ")
	return &all
}

// appendNew appends what isn't there yet.
func appendNew(to []string, more ...string) []string {
	for _, s := range more {
		if !slices.Contains(to, s) {
			to = append(to, s)
		}
	}
	return to
}

// addRates is the plan of both. It keeps the swing of the first, and has no
// PerSecond in common where one counts connections and the other doesn't.
func addRates(a, b *Rate) *Rate {
	if a == nil || b == nil || a.Each && b.Each {
		return cmp.Or(a, b)
	}
	sum := *a
	sum.PerSecond += b.PerSecond
	if a.To > 0 || b.To > 0 {
		sum.To = a.end() + b.end()
	}
	return &sum
}

// end is the rate at the end of the window.
func (r *Rate) end() float64 {
	if r.To > 0 {
		return r.To
	}
	return r.PerSecond
}

// mergeResults adds up the results.
func mergeResults(streams []*Stream) (*Result, error) {
	all := *streams[0].Result
	latency := newHistogram()
	if err := mergeHistogram(latency, streams[0]); err != nil {
		return nil, fmt.Errorf("load: merge: stream 1: %w", err)
	}
	all.ConnectErrors, all.Lost = maps.Clone(all.ConnectErrors), maps.Clone(all.Lost)
	all.Limits = slices.Clone(all.Limits)
	rate := all.Rate()
	targets := []string{all.Target}
	for i, s := range streams[1:] {
		if err := mergeHistogram(latency, s); err != nil {
			return nil, fmt.Errorf("load: merge: stream %d: %w", i+2, err)
		}
		targets = appendNew(targets, s.Result.Target)
		rate += s.Result.Rate()
		all.add(s.Result)
	}
	all.Target = strings.Join(targets, ", ")
	if rate > 0 {
		// Of windows that differ a little, the one in which the rates add up.
		all.Window = time.Duration(float64(all.rated()) / rate * float64(time.Second))
	}
	return &all, all.setLatency(latency)
}

// mergeHistogram adds the histogram of a stream.
func mergeHistogram(to *hdrhistogram.Histogram, s *Stream) error {
	if s.histogram == nil {
		return nil
	}
	if dropped := to.Merge(s.histogram); dropped > 0 {
		return fmt.Errorf("histogram: %d latencies of more than %v, or too many; expected those of this package", dropped, maxLatency)
	}
	return nil
}

// setLatency is the latency of a merged histogram. The ends are known better
// from the results than from the histogram.
func (r *Result) setLatency(h *hdrhistogram.Histogram) error {
	if h.TotalCount() == 0 {
		return nil
	}
	ends := r.Latency
	r.Latency = readLatency(h)
	r.Latency.Min, r.Latency.Max = ends.Min, ends.Max
	text, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	r.Histogram = string(text)
	return err
}

// add adds another result, but for its histogram.
func (r *Result) add(o *Result) {
	r.addCounts(o)
	r.CPUs += o.CPUs
	r.Connections += o.Connections
	r.Connected += o.Connected
	r.ConnectErrors = addCauses(r.ConnectErrors, o.ConnectErrors)
	r.Lost = addCauses(r.Lost, o.Lost)
	r.ConnectTime = max(r.ConnectTime, o.ConnectTime)
	r.Connect = addLatency(r.Connect, o.Connect)
	r.FirstByte = addLatency(r.FirstByte, o.FirstByte)
	r.Latency = addLatency(r.Latency, o.Latency)
	r.Service = addLatencies(r.Service, o.Service)
	r.Late = addLatencies(r.Late, o.Late)
	r.Schedule = addRates(r.Schedule, o.Schedule)
	r.Window = max(r.Window, o.Window)
	r.UserCPU += o.UserCPU
	r.SystemCPU += o.SystemCPU
	r.FirstMismatch = cmp.Or(r.FirstMismatch, o.FirstMismatch)
	r.FirstUnexpected = cmp.Or(r.FirstUnexpected, o.FirstUnexpected)
	r.Limits = append(r.Limits, o.Limits...)
	r.Bytes.Sent += o.Bytes.Sent
	r.Bytes.Received += o.Bytes.Received
	r.Bytes.Answered += o.Bytes.Answered
	r.Bytes.InFlight += o.Bytes.InFlight
	r.Bytes.CutOff += o.Bytes.CutOff
	r.Verifications = slices.Clone(r.Verifications)
	for i := range o.Verifications {
		if i == len(r.Verifications) {
			r.Verifications = append(r.Verifications, o.Verifications[i:]...)
			break
		}
		r.Verifications[i].add(&o.Verifications[i])
	}
	r.Broadcast = addBroadcasts(r.Broadcast, o.Broadcast)
}

// add adds one of another generator.
func (v *Verification) add(o *Verification) {
	v.InFlight += o.InFlight
	v.Open += o.Open
	v.Asked += o.Asked
	v.Checked += o.Checked
	v.Wrong += o.Wrong
	v.Lost += o.Lost
	v.Unanswered += o.Unanswered
	v.Time = max(v.Time, o.Time)
	v.Latency = addLatency(v.Latency, o.Latency)
}

// addBroadcasts is that of both. Times are from the first that each generator has got.
func addBroadcasts(a, b *Broadcast) *Broadcast {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	return &Broadcast{a.Open + b.Open, a.Heard + b.Heard, a.Again + b.Again, max(a.Time, b.Time), addLatency(a.After, b.After)}
}

// addCauses adds counts to those of a map that is ours, which can be nil.
func addCauses(to, more map[string]int64) map[string]int64 {
	if to == nil && len(more) > 0 {
		to = make(map[string]int64)
	}
	for cause, n := range more {
		to[cause] += n
	}
	return to
}

// addLatency is the distribution of both, with the worse of their percentiles,
// as neither has a histogram.
func addLatency(a, b Latency) Latency {
	if a.Count == 0 || b.Count == 0 {
		if a.Count == 0 {
			return b
		}
		return a
	}
	n := float64(a.Count) + float64(b.Count)
	return Latency{
		Count: a.Count + b.Count,
		Min:   min(a.Min, b.Min),
		Mean:  time.Duration(math.Round(float64(a.Mean)*(float64(a.Count)/n) + float64(b.Mean)*(float64(b.Count)/n))),
		P50:   max(a.P50, b.P50),
		P75:   max(a.P75, b.P75),
		P90:   max(a.P90, b.P90),
		P95:   max(a.P95, b.P95),
		P99:   max(a.P99, b.P99),
		P999:  max(a.P999, b.P999),
		P9999: max(a.P9999, b.P9999),
		Max:   max(a.Max, b.Max),
	}
}

// addLatencies does so where there can be none.
func addLatencies(a, b *Latency) *Latency {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	sum := addLatency(*a, *b)
	return &sum
}

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
	was := *to
	*to = next
	to.From, to.Errors, to.Latency, to.Connect = was.From, was.Errors, was.Latency, was.Connect
	to.addCounts(&was, false)
	to.addCauses(&next)
	server := next.Server
	if was.Server != nil && next.Server != nil {
		sum := *next.Server
		sum.CPU += was.Server.CPU
		server = &sum
	}
	to.Server = server
	to.Generator.CPU += was.Generator.CPU
}

// addCauses adds the errors of another interval, and its times.
func (i *Interval) addCauses(o *Interval) {
	i.Errors = addCauses(i.Errors, o.Errors)
	i.Latency = addLatency(i.Latency, o.Latency)
	i.Connect = addLatency(i.Connect, o.Connect)
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
		m.addCounts(&i, at != was)
		m.addCauses(&i)
		m.Generator.CPU += i.Generator.CPU
		if at == was {
			continue
		}
		was = at
		m.Generator.Resident += i.Generator.Resident
		m.Generator.Descriptors += i.Generator.Descriptors
		m.Generator.Goroutines += i.Generator.Goroutines
		m.Generator.GCs += i.Generator.GCs
		m.Generator.GCPause += i.Generator.GCPause
	}
}
