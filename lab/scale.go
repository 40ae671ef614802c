package lab

import (
	"cmp"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Scale says how a scenario is made smaller or larger. Zero values change nothing.
type Scale struct {
	// Rounds replaces the scenario's; a file can't have 0.
	Rounds int `json:"rounds,omitempty" toml:"rounds" least:"1"`
	// Connections is the most that a workload has; larger ones are made as small.
	Connections int `json:"connections,omitempty" toml:"connections"`
	// Duration, WarmUp and Hold are the longest that a workload has.
	Duration time.Duration `json:"duration,omitempty" toml:"duration"`
	WarmUp   time.Duration `json:"warm_up,omitempty" toml:"warm_up"`
	Hold     time.Duration `json:"hold,omitempty" toml:"hold"`
	// Without are the names of workloads and subjects that are left out.
	Without []string `json:"without,omitempty" toml:"without"`
}

const (
	// fullScale is the scenario as it is written.
	fullScale = "full"
	// leastFactor and mostFactor bound a scale that is a number.
	leastFactor, mostFactor = 0.001, 1000
)

// change is something that makes workloads smaller or larger, and why, as notes have it.
type change struct {
	of  func(w *Workload)
	why string
}

// at returns the scenario without what a scale leaves out, and what the scale makes of
// the rest: one of the scenario's own, or a factor. The scenario as it is written is
// changed by nothing.
func (s Scenario) at(scale string) (Scenario, []change, error) {
	if scale == "" || scale == fullScale {
		return s, nil, nil
	}
	why := "scale " + scale
	if own, ok := s.Scales[scale]; ok {
		return s.by(own, why), []change{{own.limit, why}}, nil
	}
	if factor, err := strconv.ParseFloat(scale, 64); err == nil {
		if !(factor >= leastFactor && factor <= mostFactor) {
			return s, nil, wrong("scale %s; expected a factor from %v to %v", scale, leastFactor, mostFactor)
		}
		return s, []change{{multiplied(factor), why}}, nil
	}
	own := strings.Join(append(slices.Sorted(maps.Keys(s.Scales)), fullScale), ", ")
	return s, nil, wrong("%s has no scale %q; expected one of %s, or a factor such as 0.5", s.Name, scale, own)
}

// by returns the scenario without what one of its scales leaves out, in as many rounds.
func (s Scenario) by(x Scale, why string) Scenario {
	var without []string
	left := func(name string) bool {
		found := slices.Contains(x.Without, name)
		if found {
			without = append(without, name)
		}
		return found
	}
	s.Subjects = slices.DeleteFunc(slices.Clone(s.Subjects), func(x Subject) bool { return left(x.Name) })
	s.Workloads = slices.DeleteFunc(slices.Clone(s.Workloads), func(w Workload) bool { return left(w.Name) })
	if len(without) > 0 {
		s.note("Left out: %s (%s).", joined(without), why)
	}
	return s.inRounds(x.Rounds, why)
}

// inRounds returns the scenario with as many rounds for all workloads, 0 for their own.
func (s Scenario) inRounds(n int, why string) Scenario {
	if n == 0 {
		return s
	}
	if n != s.Rounds {
		s.note("Rounds: %d instead of %d (%s).", n, s.Rounds, why)
		s.Rounds = n
	}
	s.Workloads = slices.Clone(s.Workloads)
	for i := range s.Workloads {
		w := &s.Workloads[i]
		if w.Rounds != 0 && w.Rounds != n && !s.leavesOut(*w) {
			s.note("Rounds of %s: %d instead of %d (%s).", w.Name, n, w.Rounds, why)
		}
		w.Rounds = 0
	}
	return s
}

// limit makes a workload as small as the scale has it.
func (x Scale) limit(w *Workload) {
	if x.Connections > 0 {
		w.Connections = min(w.Connections, x.Connections)
	}
	if w.Kind == Holding && x.Hold > 0 && x.Hold < w.Hold {
		w.heldFor(x.Hold)
	}
	for _, t := range []struct {
		of   *time.Duration
		most time.Duration
	}{{&w.Duration, x.Duration}, {&w.WarmUp, x.WarmUp}, {&w.Hold, x.Hold}} {
		if t.most > 0 {
			*t.of = min(*t.of, t.most)
		}
	}
}

// maxConnections bounds what a factor makes of a number of connections.
const maxConnections = 1 << 30

// multiplied multiplies connections and times by a factor, within the bounds of a
// workload.
func multiplied(factor float64) func(w *Workload) {
	times := func(d *time.Duration, least time.Duration) {
		if *d > 0 {
			*d = time.Duration(math.Min(float64(*d)*factor, float64(maxDuration))).Round(time.Millisecond)
			*d = max(*d, least)
		}
	}
	return func(w *Workload) {
		most := maxConnections
		if w.Kind == Parking {
			most = MaxParked
		}
		if w.Connections > 0 {
			w.Connections = min(max(int(math.Round(float64(w.Connections)*factor)), 1), most)
		}
		times(&w.WarmUp, 0)
		times(&w.Hold, minHold)
		times(&w.Interval, minHeartbeat)
		times(&w.Duration, minDuration)
		if w.Kind == Heartbeats {
			w.Interval = min(w.Interval, maxDuration*8/9)
			w.Duration = max(w.Duration, w.Interval+w.Interval/8)
		}
	}
}

// resized returns the scenario with each workload changed, and what has become the same
// by that once. The notes say what was changed, and why.
func (s Scenario) resized(changes []change) Scenario {
	was := s.Workloads
	s.Workloads = slices.Clone(was)
	var whys []string
	for _, c := range changes {
		for i := range s.Workloads {
			c.of(&s.Workloads[i])
		}
		whys = append(whys, c.why)
	}
	why := joined(whys)
	for _, part := range resizedParts {
		s.noteChanges(was, part, why)
	}
	return s.once(was, why)
}

// resizedParts are what a scale changes of a workload.
var resizedParts = []func(w *Workload) (value, what string){
	func(w *Workload) (string, string) {
		what := "connections"
		if w.Kind == Parking {
			what = "goroutines"
		}
		return thousands(float64(w.Connections)), "%s " + what
	},
	func(w *Workload) (string, string) { return w.Duration.String(), "a duration of %s" },
	func(w *Workload) (string, string) { return w.WarmUp.String(), "a warm-up of %s" },
	func(w *Workload) (string, string) { return w.Hold.String(), "a hold of %s" },
	func(w *Workload) (string, string) { return w.Interval.String(), "an interval of %s" },
}

// noteChanges adds a sentence for each new value of a part of the workloads, about all
// that have it now.
func (s *Scenario) noteChanges(was []Workload, part func(*Workload) (string, string), why string) {
	type group struct{ names, old []string }
	groups := map[string]*group{}
	var order []string
	all := 0
	for i := range was {
		if s.leavesOut(was[i]) {
			continue
		}
		all++
		old, _ := part(&was[i])
		now, what := part(&s.Workloads[i])
		if now == old {
			continue
		}
		text := strings.Replace(what, "%s", now, 1)
		if groups[text] == nil {
			groups[text] = &group{}
			order = append(order, text)
		}
		g := groups[text]
		g.names, g.old = append(g.names, was[i].Name), append(g.old, old)
	}
	for _, text := range order {
		g := groups[text]
		names, has := joined(g.names), "have"
		if len(g.names) == 1 {
			has = "has"
		} else if len(g.names) == all {
			names = "All workloads"
		}
		s.note("%s %s %s instead of %s (%s).", names, has, text, joined(slices.Compact(g.old)), why)
	}
}

// once leaves out each workload that has become the same as one before it, and has
// subjects and published rows name that.
func (s Scenario) once(was []Workload, why string) Scenario {
	var kept []int
	instead, same := map[string]string{}, map[string][]string{}
	for i := range s.Workloads {
		at := slices.IndexFunc(kept, func(j int) bool {
			return alike(s.Workloads[i], s.Workloads[j]) && !alike(was[i], was[j])
		})
		if at < 0 {
			kept = append(kept, i)
			continue
		}
		like := &s.Workloads[kept[at]]
		like.Rounds = max(like.Rounds, s.Workloads[i].Rounds)
		name, first := s.Workloads[i].Name, like.Name
		instead[name] = first
		if !s.leavesOut(s.Workloads[i]) {
			same[first] = append(same[first], name)
		}
	}
	for _, i := range kept {
		if names := same[s.Workloads[i].Name]; len(names) > 0 {
			s.note("The same as %s then, and left out: %s (%s).", s.Workloads[i].Name, joined(names), why)
		}
	}
	if len(instead) == 0 {
		return s
	}
	workloads := make([]Workload, len(kept))
	for i, j := range kept {
		workloads[i] = s.Workloads[j]
	}
	s.Workloads = workloads
	s.Subjects = slices.Clone(s.Subjects)
	for i := range s.Subjects {
		names := slices.Clone(s.Subjects[i].Workloads)
		for j, name := range names {
			names[j] = cmp.Or(instead[name], name)
		}
		s.Subjects[i].Workloads = names
	}
	s.Published = slices.Clone(s.Published)
	for i := range s.Published {
		rows := slices.Clone(s.Published[i].Rows)
		for j := range rows {
			if first, ok := instead[rows[j].Workload]; ok {
				rows[j].Workload = first
			}
			rows[j].Else = slices.DeleteFunc(slices.Clone(rows[j].Else), func(name string) bool { return instead[name] != "" })
		}
		s.Published[i].Rows = rows
	}
	return s
}

// alike says whether two workloads are the same but for what they are called. How long
// connections are held does not count: it serves to sample them.
func alike(a, b Workload) bool {
	for _, w := range []*Workload{&a, &b} {
		w.Name, w.Caption, w.Hold, w.Rounds = "", "", 0, 0
	}
	return reflect.DeepEqual(a, b)
}
