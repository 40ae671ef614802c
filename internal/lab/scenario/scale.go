package scenario

import (
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/myriad-go/myriad/internal/format"
)

// Scale says how a scenario is made smaller. Zero values change nothing.
type Scale struct {
	// Rounds replaces the scenario's, and those of its workloads.
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

// fullScale is the scenario as it is written.
const fullScale = "full"

var scaleName = regexp.MustCompile(`^[a-z][a-z-]{0,39}$`)

func (x Scale) check(name string) error {
	switch {
	case !scaleName.MatchString(name) || name == fullScale:
		return Errorf("scale name %q; expected 1 to 40 small letters and dashes, and not %s, which is the scenario as it is written", name, fullScale)
	case x.Rounds < 0 || x.Connections < 0 || x.Duration < 0 || x.WarmUp < 0 || x.Hold < 0:
		return Errorf("a number or a time is below 0; expected more")
	}
	return nil
}

// scale finds one of the scenario's scales; "" and "full" change nothing.
func (s *Scenario) scale(name string) (Scale, error) {
	x, ok := s.Scales[name]
	if !ok && name != "" && name != fullScale {
		return x, Errorf("%s has no scale %q; expected one of %s", s.Name, name,
			strings.Join(append(slices.Sorted(maps.Keys(s.Scales)), fullScale), ", "))
	}
	return x, nil
}

// apply returns the scenario at a scale; s stays as it is. A workload that becomes the same as
// one before it by that is left out.
func (x Scale) apply(s Scenario) Scenario {
	without := func(name string) bool { return slices.Contains(x.Without, name) }
	s.Subjects = slices.DeleteFunc(slices.Clone(s.Subjects), func(x Subject) bool { return without(x.Name) })
	if x.Rounds > 0 {
		s.Rounds = x.Rounds
	}
	was := s.Workloads
	s.Workloads = nil
	for _, w := range was {
		if without(w.Name) {
			continue
		}
		w = x.limit(w)
		if x.Rounds > 0 {
			w.Rounds = 0
		}
		if !slices.ContainsFunc(s.Workloads, func(before Workload) bool {
			return Same(w, before) && !Same(*find(was, w.Name), *find(was, before.Name))
		}) {
			s.Workloads = append(s.Workloads, w)
		}
	}
	return s
}

// limit returns the workload as small as the scale has it. Heartbeats of a shorter hold come
// more often, so that there are as many.
func (x Scale) limit(w Workload) Workload {
	if x.Connections > 0 {
		w.Connections = min(w.Connections, x.Connections)
	}
	atMost := func(d, most Duration) Duration {
		if most > 0 {
			return min(d, most)
		}
		return d
	}
	w.Phases = slices.Clone(w.Phases)
	for i := range w.Phases {
		p := &w.Phases[i]
		p.WarmUp = atMost(p.WarmUp, x.WarmUp)
		if p.Do != Hold {
			p.For = atMost(p.For, x.Duration)
			continue
		}
		was := p.For
		p.For = atMost(p.For, x.Hold)
		if p.Heartbeat > 0 && p.For < was {
			p.Heartbeat = max(Duration(float64(p.Heartbeat)*float64(p.For)/float64(was)), Duration(minHeartbeat))
		}
	}
	return w
}

// noteChanges notes how the scenario differs from what it was, by which options.
func (s *Scenario) noteChanges(was *Scenario, o Options) {
	why := o.String()
	if s.Rounds != was.Rounds {
		s.note("Rounds: %d instead of %d.", s.Rounds, was.Rounds)
	}
	var left, shorter []string
	for i := range was.Subjects {
		if x := &was.Subjects[i]; s.Subject(x.Name) == nil {
			left = append(left, x.Name)
		}
	}
	for i := range was.Workloads {
		old := &was.Workloads[i]
		w := s.Workload(old.Name)
		switch {
		case !was.runs(*old, o.Only):
			continue
		case w == nil:
			left = append(left, old.Name)
			continue
		case w.Connections != old.Connections:
			s.note("%s has %s connections instead of %s (%s).", w.Name, format.Count(w.Connections), format.Count(old.Connections), why)
		}
		if !reflect.DeepEqual(w.Filled().Phases, old.Filled().Phases) {
			shorter = append(shorter, w.Name)
		}
	}
	if len(left) > 0 {
		s.note("Left out: %s (%s).", Join(left), why)
	}
	switch {
	case len(shorter) == len(s.Workloads) && len(shorter) > 1:
		s.note("The times of all workloads are changed (%s).", why)
	case len(shorter) > 0:
		s.note("Times are changed of %s (%s).", Join(shorter), why)
	}
}

// Same says whether two workloads are the same load, whatever they are called. How long
// connections are held does not count: it serves to sample them.
func Same(a, b Workload) bool {
	for _, w := range []*Workload{&a, &b} {
		*w = w.Filled()
		w.Name, w.Caption, w.Rounds, w.Whole = "", "", 0, false
		for i := range w.Phases {
			if p := &w.Phases[i]; p.Do == Hold && p.Heartbeat == 0 {
				p.For = 0
			}
		}
	}
	return reflect.DeepEqual(a, b)
}
