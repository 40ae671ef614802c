package load

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/myriad-go/myriad/internal/format"
)

// Merge makes one result of those of several generators that loaded the same servers at
// the same time. Counts and rates add up. Latency is that of all answers, read off the
// merged histograms. So are Service, Late, Connect and FirstByte where all results have
// Histograms of them; otherwise their percentiles are the worst of any generator. Runs that
// were not at the same time by the clocks of their machines, or whose modes differ, are refused.
func Merge(results ...*Result) (*Result, error) {
	if len(results) == 0 {
		return nil, errors.New("load: merge of no results; expected one or more")
	}
	first := results[0]
	all, latency, rate := *first, newHistogram(), 0.0
	var targets []string
	for i, r := range results {
		h, err := r.mergeable(first)
		if err != nil {
			return nil, fmt.Errorf("load: merge: result %d: %w", i+1, err)
		}
		if h != nil {
			if dropped := latency.Merge(h); dropped > 0 {
				return nil, fmt.Errorf("load: merge: result %d: histogram: %d latencies of more than %v, or too many; expected those of this package", i+1, dropped, maxLatency)
			}
		}
		rate += r.Rate()
		if !slices.Contains(targets, r.Target) {
			targets = append(targets, r.Target)
		}
		if i == 0 {
			all.ConnectErrors, all.Lost, all.BadStatus = maps.Clone(r.ConnectErrors), maps.Clone(r.Lost), maps.Clone(r.BadStatus)
			all.Limits, all.Verifications = slices.Clone(r.Limits), slices.Clone(r.Verifications)
		} else {
			all.add(r)
		}
	}
	all.Target = strings.Join(targets, ", ")
	if rate > 0 {
		// Of windows that differ a little, the one in which the rates add up.
		all.Window = time.Duration(float64(all.rated()) / rate * float64(time.Second))
	}
	if latency.TotalCount() > 0 {
		ends := all.Latency // known better from the results than from the histogram
		all.Latency, all.Histogram = readLatency(latency), encode(latency)
		all.Latency.Min, all.Latency.Max = ends.Min, ends.Max
	}
	return &all, all.mergeOthers(results)
}

// others are the distributions besides the latency, by their keys in Result.Histograms.
var others = map[string]func(*Result) *Latency{
	"connect":    func(r *Result) *Latency { return &r.Connect },
	"first_byte": func(r *Result) *Latency { return &r.FirstByte },
	"service":    func(r *Result) *Latency { return r.Service },
	"late":       func(r *Result) *Latency { return r.Late },
}

// mergeOthers merges the other distributions exactly, where all results have histograms.
func (r *Result) mergeOthers(results []*Result) error {
	all := make(map[string]string)
	for name, of := range others {
		var merged merger
		for i, part := range results {
			if err := merged.add(of(part), part.Histograms[name]); err != nil {
				return fmt.Errorf("load: merge: result %d: %s: %w", i+1, name, err)
			}
		}
		if to := of(r); to != nil {
			merged.read(to, all, name)
		}
	}
	r.Histograms = nil
	if len(all) > 0 {
		r.Histograms = all
	}
	return nil
}

// intervalTimes are the distributions of an interval, by their keys in Interval.Histograms.
var intervalTimes = map[string]func(*Interval) *Latency{
	"latency": func(i *Interval) *Latency { return &i.Latency },
	"connect": func(i *Interval) *Latency { return &i.Connect },
}

// mergeTimes sets the distributions of an interval to those of all its parts, where these have
// histograms; otherwise it leaves what there is.
func (i *Interval) mergeTimes(parts ...*Interval) {
	all := make(map[string]string)
	for name, of := range intervalTimes {
		var merged merger
		for _, part := range parts {
			if merged.add(of(part), part.Histograms[name]) != nil {
				merged.lacks = true
			}
		}
		merged.read(of(i), all, name)
	}
	i.Histograms = nil
	if len(all) > 0 {
		i.Histograms = all
	}
}

// merger merges histograms, unless it lacks one.
type merger struct {
	sum   *hdrhistogram.Histogram // nil for none
	lacks bool
}

// add adds a distribution, which can be nil, and its histogram.
func (m *merger) add(l *Latency, text string) error {
	h, err := decodeHistogram(text)
	switch {
	case err != nil:
		return err
	case l == nil || l.Count == 0:
	case h == nil:
		m.lacks = true
	case m.sum == nil:
		m.sum = h
	default:
		m.lacks = m.sum.Merge(h) > 0 || m.lacks
	}
	return nil
}

// read reads off what all together make, if that is known and anything.
func (m *merger) read(to *Latency, histograms map[string]string, name string) {
	if !m.lacks && m.sum != nil {
		*to, histograms[name] = readLatency(m.sum), encode(m.sum)
	}
}

// MergeEvents makes one event of those of several generators: of the same phase, and at about the
// same time. Snapshots, plans, intervals, verifications, broadcasts and what is received add up. Percentiles of
// intervals are those of all where all have Histograms, otherwise the worst of any. A server that
// several have looked at counts once. Results are not merged: see Merge. It is nil of no events.
func MergeEvents(events ...Event) *Event {
	if len(events) == 0 {
		return nil
	}
	all := Event{Phase: events[0].Phase}
	var intervals []*Interval
	for _, e := range events {
		if e.Interval != nil {
			intervals = append(intervals, e.Interval)
		}
		all.Snapshot.Add(e.Snapshot)
		all.Received += e.Received
		all.Plan = addPlans(all.Plan, e.Plan)
		all.Interval = addIntervals(all.Interval, e.Interval)
		all.Broadcast = addBroadcasts(all.Broadcast, e.Broadcast)
		switch {
		case all.Verification == nil:
			all.Verification = e.Verification
		case e.Verification != nil:
			sum := *all.Verification
			sum.add(e.Verification)
			all.Verification = &sum
		}
	}
	if len(intervals) > 1 {
		all.Interval.mergeTimes(intervals...)
	}
	return &all
}

// Add adds that of another generator.
func (s *Snapshot) Add(o Snapshot) {
	s.Open += o.Open
	s.Failed += o.Failed
	s.Sent += o.Sent
	s.Answered += o.Answered
}

// addPlans is the plan of both.
func addPlans(a, b *Plan) *Plan {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	all := *a
	all.Connections += b.Connections
	all.Sources += b.Sources
	all.Loops += b.Loops
	all.Check += b.Check
	all.Rate = addRates(a.Rate, b.Rate)
	all.Host = a.Host + "; " + b.Host
	all.Generator = addUsages(a.Generator, b.Generator)
	all.Server = cmp.Or(a.Server, b.Server)
	return &all
}

func addUsages(a, b *Usage) *Usage {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	return &Usage{
		CPU: a.CPU + b.CPU, Resident: a.Resident + b.Resident, Anonymous: a.Anonymous + b.Anonymous,
		Descriptors: a.Descriptors + b.Descriptors, Goroutines: a.Goroutines + b.Goroutines,
		GCs: a.GCs + b.GCs, GCPause: a.GCPause + b.GCPause,
	}
}

// addIntervals is what both had, in about the same time.
func addIntervals(a, b *Interval) *Interval {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	sum := *a
	sum.Errors = maps.Clone(a.Errors)
	sum.addCounts(b, true)
	sum.addCauses(b)
	sum.From, sum.To = min(a.From, b.From), max(a.To, b.To)
	sum.Generator = *addUsages(&a.Generator, &b.Generator)
	sum.Server = cmp.Or(a.Server, b.Server)
	return &sum
}

// mergeable says what keeps a result from being merged with the first one. It returns
// its histogram, nil for none.
func (r *Result) mergeable(first *Result) (*hdrhistogram.Histogram, error) {
	h, err := decodeHistogram(r.Histogram)
	switch {
	case err != nil:
		return nil, err
	case r.Mode != first.Mode:
		return nil, fmt.Errorf("mode %q; expected %q as in the first", r.Mode, first.Mode)
	case r.Corrected != first.Corrected:
		return nil, errors.New("only one of its latency and the first's is corrected; expected both or none")
	case r.Latency.Count > 0 && h == nil:
		return nil, errors.New("no histogram; expected one, to merge latencies")
	case r == first || r.Start.IsZero() || first.Start.IsZero():
	case !r.Start.Before(first.Start.Add(first.Took)), !first.Start.Before(r.Start.Add(r.Took)):
		return nil, fmt.Errorf("it ran from %v on for %v; expected at the time of the first, from %v on for %v",
			r.Start.Format(time.DateTime), format.Round(r.Took), first.Start.Format(time.DateTime), format.Round(first.Took))
	}
	return h, nil
}

// addRates is the plan of both. It has no PerSecond in common where one counts
// connections and the other doesn't.
func addRates(a, b *Rate) *Rate {
	if a == nil || b == nil || a.Each && b.Each {
		return cmp.Or(a, b)
	}
	sum := *a
	sum.PerSecond += b.PerSecond
	if a.To > 0 || b.To > 0 {
		sum.To = cmp.Or(a.To, a.PerSecond) + cmp.Or(b.To, b.PerSecond)
	}
	return &sum
}

// add adds another result, but for its histogram.
func (r *Result) add(o *Result) {
	r.addCounts(o)
	if o.Start.Before(r.Start) {
		r.Start = o.Start
	}
	r.Took = max(r.Took, o.Took)
	r.Interrupted = r.Interrupted || o.Interrupted
	r.CPUs += o.CPUs
	r.Connections += o.Connections
	r.Connected += o.Connected
	r.ConnectErrors = addCauses(r.ConnectErrors, o.ConnectErrors)
	r.Lost = addCauses(r.Lost, o.Lost)
	r.BadStatus = addCauses(r.BadStatus, o.BadStatus)
	r.ConnectTime = max(r.ConnectTime, o.ConnectTime)
	r.Connect.add(&o.Connect)
	r.FirstByte.add(&o.FirstByte)
	r.Latency.add(&o.Latency)
	r.Service = addLatencies(r.Service, o.Service)
	r.Late = addLatencies(r.Late, o.Late)
	r.Schedule = addRates(r.Schedule, o.Schedule)
	r.Window = max(r.Window, o.Window)
	r.Variation = max(r.Variation, o.Variation)
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
	for i := range o.Verifications {
		if i == len(r.Verifications) {
			r.Verifications = append(r.Verifications, o.Verifications[i:]...)
			break
		}
		r.Verifications[i].add(&o.Verifications[i])
	}
	r.PubSub = addPubSubs(r.PubSub, o.PubSub)
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
	v.Latency.add(&o.Latency)
}

// addPubSubs is what both were of together: on as many topics as the one that had more.
func addPubSubs(a, b *PubSub) *PubSub {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	return &PubSub{Protocol: a.Protocol, Topics: max(a.Topics, b.Topics), Publishers: a.Publishers + b.Publishers, Slow: a.Slow + b.Slow}
}

// addBroadcasts is that of both. Times are from the first that each generator has got.
func addBroadcasts(a, b *Broadcast) *Broadcast {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	return &Broadcast{a.Open + b.Open, a.Heard + b.Heard, a.Again + b.Again, max(a.Time, b.Time), *addLatencies(&a.After, &b.After)}
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

// addLatencies adds distributions that may be missing.
func addLatencies(a, b *Latency) *Latency {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	sum := *a
	sum.add(b)
	return &sum
}
