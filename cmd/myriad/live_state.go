package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/myriad-go/myriad/load"
)

const (
	// liveHistory is how many intervals are remembered.
	liveHistory = 240
	// liveCauses bounds the causes of errors that are told apart; others count
	// as "other".
	liveCauses = 64
)

// liveState is what the view knows of a run.
type liveState struct {
	plan     load.Plan // the zero Plan until it is told
	snapshot load.Snapshot
	before   load.Snapshot // at the end of the last interval
	last     load.Interval // the last one
	elapsed  time.Duration
	stage    string
	since    time.Duration // when the stage began

	pressure float64 // the share of the last interval in which programs waited for a processor

	failed, lost int64 // since the run began
	errors       map[string]int64
	rates        []float64 // answered a second in each interval; sent, where no answer is awaited
	p99s         []float64 // seconds; 0 where there was no answer
}

// add takes an event, at a time since the run began.
func (s *liveState) add(e load.Event, at time.Duration) {
	s.snapshot, s.elapsed = e.Snapshot, at
	if e.Plan != nil {
		s.plan = *e.Plan
	}
	switch e.Phase {
	case load.Began:
		s.enter("connect")
	case load.Measuring:
		s.enter("window")
	case load.Progress:
		if e.Interval != nil {
			s.interval(*e.Interval)
		} else {
			s.interval(s.guess())
		}
		s.before = e.Snapshot
	}
}

// guess is what snapshots tell of an interval.
func (s *liveState) guess() load.Interval {
	was, now := s.before, s.snapshot
	return load.Interval{
		From: s.last.To, To: s.elapsed, Stage: s.stage, Open: now.Open, Opened: max(now.Open-was.Open, 0), Failed: now.Failed - was.Failed,
		Sent: now.Sent - was.Sent, Answered: now.Answered - was.Answered, Flying: now.Sent - now.Answered,
	}
}

// enter notes that a stage begins.
func (s *liveState) enter(stage string) {
	if stage != s.stage {
		s.stage, s.since = stage, s.elapsed
	}
}

func (s *liveState) interval(i load.Interval) {
	s.last = i
	if i.Stage != "" {
		s.enter(i.Stage)
	}
	s.failed += i.Failed
	s.lost += i.Lost
	for cause, n := range i.Errors {
		if s.errors == nil {
			s.errors = make(map[string]int64)
		}
		if _, known := s.errors[cause]; !known && len(s.errors) >= liveCauses {
			cause = "other"
		}
		s.errors[cause] += n
	}
	count := i.Answered
	if s.unanswered() {
		count = i.Sent
	}
	s.rates = remember(s.rates, s.perSecond(count))
	s.p99s = remember(s.p99s, i.Latency.P99.Seconds())
}

// remember appends a value and forgets what is older than liveHistory.
func remember(list []float64, v float64) []float64 {
	if len(list) == liveHistory {
		list = slices.Delete(list, 0, 1)
	}
	return append(list, v)
}

// unanswered says whether no answers are awaited.
func (s *liveState) unanswered() bool { return s.plan.NoReply && s.plan.Mode != "hold" }

// perSecond is a count of the last interval as a rate.
func (s *liveState) perSecond(n int64) float64 {
	if d := s.last.To - s.last.From; d > 0 {
		return float64(n) / d.Seconds()
	}
	return 0
}

// cpus is how many processors a usage kept busy in the last interval.
func (s *liveState) cpus(u load.Usage) float64 {
	return s.perSecond(int64(u.CPU)) / float64(time.Second)
}

// topErrors are the most frequent causes, and how many others there are.
func (s *liveState) topErrors(most int) (names []string, more int) {
	names = slices.SortedFunc(maps.Keys(s.errors), func(a, b string) int {
		return cmp.Or(cmp.Compare(s.errors[b], s.errors[a]), cmp.Compare(a, b))
	})
	if len(names) > most {
		return names[:most], len(names) - most
	}
	return names, 0
}

// endless is a duration from which on nobody waits for the end.
const endless = 24 * time.Hour

// progress is how far the stage is, 0 to 1, or less than 0 where that isn't known,
// and that in words.
func (s *liveState) progress() (share float64, text string) {
	in := s.elapsed - s.since
	switch {
	case s.stage == "connect" && s.plan.Connections > 0:
		done := s.snapshot.Open + s.snapshot.Failed
		return shareOf(float64(done), float64(s.plan.Connections)), liveSpan(in)
	case s.stage == "window" && s.plan.Messages > 0:
		// Also those that have exchanged theirs and are closed.
		all := s.plan.Messages * max(int64(s.plan.Connections)-s.snapshot.Failed, s.snapshot.Open, 1)
		return shareOf(float64(s.snapshot.Answered), float64(all)), fmt.Sprintf("%s of %s messages", liveCount(s.snapshot.Answered), liveCount(all))
	case s.timed() && s.plan.Duration > 0 && s.plan.Duration < endless:
		return shareOf(in.Seconds(), s.plan.Duration.Seconds()), liveSpan(min(in, s.plan.Duration)) + " of " + liveSpan(s.plan.Duration)
	}
	return -1, liveSpan(in)
}

// timed says whether the stage is the one that Plan.Duration is of.
func (s *liveState) timed() bool {
	return s.stage == "window" || s.plan.Mode == "hold" && s.stage == "hold"
}

// shareOf is a part of a whole, 0 to 1.
func shareOf(part, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return min(max(part/whole, 0), 1)
}

// oneLine is the state in a line, for screens that show no more.
func (s *liveState) oneLine() string {
	rate := 0.0
	if len(s.rates) > 0 {
		rate = s.rates[len(s.rates)-1]
	}
	return fmt.Sprintf("%v, %.0f/s", s.snapshot, rate)
}
