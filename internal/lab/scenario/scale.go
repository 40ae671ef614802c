package scenario

import (
	"cmp"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/myriad-go/myriad/internal/format"
)

// Scale says how a scenario is made smaller or larger. Zero values change nothing.
type Scale struct {
	// Rounds replaces the scenario's.
	Rounds int `json:"rounds,omitempty" toml:"rounds"`
	// Connections is the most that a workload has; larger ones are made as small.
	Connections int `json:"connections,omitempty" toml:"connections"`
	// Duration, WarmUp and Hold are the longest that phases have: Hold that of Hold.
	Duration Duration `json:"duration,omitempty" toml:"duration"`
	WarmUp   Duration `json:"warm_up,omitempty" toml:"warm_up"`
	Hold     Duration `json:"hold,omitempty" toml:"hold"`
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
	apply func(w *Workload)
	why   string
}

// at returns the scenario without what a scale leaves out, and what the scale changes of the
// rest: one of the scenario's own, or a factor.
func (s Scenario) at(scale string) (Scenario, []change, error) {
	if scale == "" || scale == fullScale {
		return s, nil, nil
	}
	why := "scale " + scale
	if own, ok := s.Scales[scale]; ok {
		return s.without(own.Without, why).inRounds(own.Rounds, why), []change{{own.limit, why}}, nil
	}
	if factor, err := strconv.ParseFloat(scale, 64); err == nil {
		if !(factor >= leastFactor && factor <= mostFactor) {
			return s, nil, Errorf("scale %s; expected a factor from %v to %v", scale, leastFactor, mostFactor)
		}
		return s, []change{{multiplied(factor), why}}, nil
	}
	own := strings.Join(append(slices.Sorted(maps.Keys(s.Scales)), fullScale), ", ")
	return s, nil, Errorf("%s has no scale %q; expected one of %s, or a factor such as 0.5", s.Name, scale, own)
}

// without returns the scenario without some subjects and workloads.
func (s Scenario) without(names []string, why string) Scenario {
	var found []string
	left := func(name string) bool {
		is := slices.Contains(names, name)
		if is {
			found = append(found, name)
		}
		return is
	}
	s.Subjects = slices.DeleteFunc(slices.Clone(s.Subjects), func(x Subject) bool { return left(x.Name) })
	s.Workloads = slices.DeleteFunc(slices.Clone(s.Workloads), func(w Workload) bool { return left(w.Name) })
	if len(found) > 0 {
		s.note("Left out: %s (%s).", Join(found), why)
	}
	return s
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

// limit makes a workload as small as the scale has it. Heartbeats of a shorter hold come
// more often, so that there are as many.
func (x Scale) limit(w *Workload) {
	if x.Connections > 0 {
		w.Connections = min(w.Connections, x.Connections)
	}
	bound := func(d *Duration, most Duration) {
		if most > 0 {
			*d = min(*d, most)
		}
	}
	for i := range w.Phases {
		p := &w.Phases[i]
		bound(&p.WarmUp, x.WarmUp)
		if p.Do != Hold {
			bound(&p.For, x.Duration)
			continue
		}
		was := p.For
		bound(&p.For, x.Hold)
		if p.Heartbeat > 0 && p.For < was {
			p.Heartbeat = max(Duration(float64(p.Heartbeat)*float64(p.For)/float64(was)), Duration(minHeartbeat))
		}
	}
}

// multiplied multiplies connections and times by a factor, within the bounds of a workload.
func multiplied(factor float64) func(w *Workload) {
	times := func(d *Duration, least time.Duration) {
		if *d > 0 {
			v := time.Duration(math.Min(float64(*d)*factor, float64(maxDuration))).Round(time.Millisecond)
			*d = Duration(max(v, least))
		}
	}
	return func(w *Workload) {
		if w.Connections > 0 {
			w.Connections = min(max(int(math.Round(float64(w.Connections)*factor)), 1), maxHeld)
		}
		for i := range w.Phases {
			p := &w.Phases[i]
			least := minDuration
			switch {
			case p.Do == Attack:
				least = minAttack
			case p.Do == Hold && p.Heartbeat == 0:
				least = minHold
			}
			times(&p.WarmUp, 0)
			times(&p.For, least)
			times(&p.Heartbeat, minHeartbeat)
			if p.Do == Load && p.Heartbeat > 0 {
				p.Heartbeat = min(p.Heartbeat, Duration(maxDuration*8/9))
				p.For = max(p.For, p.Heartbeat+p.Heartbeat/8)
			}
		}
	}
}

// resized returns the scenario with each workload changed, and what has become the same by
// that once. The notes say what was changed, and why.
func (s Scenario) resized(changes []change) Scenario {
	was := s.Workloads
	s.Workloads = slices.Clone(was)
	var whys []string
	for _, c := range changes {
		for i := range s.Workloads {
			w := &s.Workloads[i]
			w.Phases = slices.Clone(w.Phases)
			c.apply(w)
		}
		whys = append(whys, c.why)
	}
	why := Join(whys)
	s.noteChanges(was, why, func(w *Workload) string { return format.Count(w.Connections) + " connections" })
	s.noteChanges(was, why, func(w *Workload) string {
		var words []string
		for _, p := range w.Phases {
			if p.For > 0 {
				words = append(words, p.Do+" "+p.For.String())
			}
			if p.WarmUp > 0 {
				words = append(words, "warm-up "+p.WarmUp.String())
			}
		}
		return strings.Join(words, ", ")
	})
	return s.once(was, why)
}

// noteChanges adds a sentence for each new text of workloads, about all that have it now.
func (s *Scenario) noteChanges(was []Workload, why string, text func(*Workload) string) {
	type group struct{ names, old []string }
	groups := map[string]*group{}
	var order []string
	all := 0
	for i := range was {
		if s.leavesOut(was[i]) {
			continue
		}
		all++
		old, now := text(&was[i]), text(&s.Workloads[i])
		if now == old {
			continue
		}
		if groups[now] == nil {
			groups[now] = &group{}
			order = append(order, now)
		}
		g := groups[now]
		g.names, g.old = append(g.names, was[i].Name), append(g.old, strings.TrimSuffix(old, " connections"))
	}
	for _, now := range order {
		g := groups[now]
		names, has := Join(g.names), "have"
		if len(g.names) == 1 {
			has = "has"
		} else if len(g.names) == all {
			names = "All workloads"
		}
		s.note("%s %s %s instead of %s (%s).", names, has, now, Join(slices.Compact(g.old)), why)
	}
}

// once leaves out each workload that has become the same as one before it, and has subjects,
// published rows, claims and the answer name that.
func (s Scenario) once(was []Workload, why string) Scenario {
	var kept []Workload
	var keptWas []Workload
	instead, same := map[string]string{}, map[string][]string{}
	for i, w := range s.Workloads {
		at := slices.IndexFunc(kept, func(k Workload) bool { return alike(w, k) })
		if at < 0 || alike(was[i], keptWas[at]) {
			kept, keptWas = append(kept, w), append(keptWas, was[i])
			continue
		}
		first := &kept[at]
		first.Rounds = max(first.Rounds, w.Rounds)
		instead[w.Name] = first.Name
		if !s.leavesOut(w) {
			same[first.Name] = append(same[first.Name], w.Name)
		}
	}
	if len(instead) == 0 {
		return s
	}
	for _, w := range kept {
		if names := same[w.Name]; len(names) > 0 {
			s.note("The same as %s then, and left out: %s (%s).", w.Name, Join(names), why)
		}
	}
	s.Workloads = kept
	rename := func(names []string) []string {
		names = slices.Clone(names)
		for i, name := range names {
			names[i] = cmp.Or(instead[name], name)
		}
		return names
	}
	s.Subjects = slices.Clone(s.Subjects)
	for i := range s.Subjects {
		s.Subjects[i].Workloads = rename(s.Subjects[i].Workloads)
	}
	s.Published = slices.Clone(s.Published)
	for i := range s.Published {
		rows := slices.Clone(s.Published[i].Rows)
		for j := range rows {
			rows[j].Workload = cmp.Or(instead[rows[j].Workload], rows[j].Workload)
			rows[j].Else = slices.DeleteFunc(slices.Clone(rows[j].Else), func(name string) bool { return instead[name] != "" })
		}
		s.Published[i].Rows = rows
	}
	s.Answer = slices.Clone(s.Answer)
	for i := range s.Answer {
		s.Answer[i].Workload = cmp.Or(instead[s.Answer[i].Workload], s.Answer[i].Workload)
	}
	return s
}

// alike says whether two workloads are the same but for what they are called. How long
// connections are held does not count: it serves to sample them.
func alike(a, b Workload) bool {
	for _, w := range []*Workload{&a, &b} {
		w.Name, w.Caption, w.Rounds = "", "", 0
		w.Phases = slices.Clone(w.Phases)
		for i := range w.Phases {
			if w.Phases[i].Do == Hold && w.Phases[i].Heartbeat == 0 {
				w.Phases[i].For = 0
			}
		}
	}
	return reflect.DeepEqual(a, b)
}

// Same says whether two workloads ask the same, as far as both are known: the reports of
// versions before phases have none.
func Same(a, b Workload) bool {
	a, b = a.Filled(), b.Filled()
	a.Caption, b.Caption, a.Whole, b.Whole = "", "", false, false
	if len(a.Phases) == 0 || len(b.Phases) == 0 {
		a.Phases, b.Phases, a.KeepFree, b.KeepFree, a.LoadLoops, b.LoadLoops = nil, nil, 0, 0, 0, 0
	}
	return reflect.DeepEqual(a, b)
}
