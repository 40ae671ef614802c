package lab

import (
	"regexp"
	"slices"
	"strings"
)

// A scenario may have workloads and subjects that are left out, unless they are asked for
// by their names: Options.With.

// Optional are the names of the workloads and of the subjects that are left out unless they
// are asked for. A subject with models has one for each of them, whether that can run here
// or not.
func (s Scenario) Optional() (names []string) {
	for _, w := range s.Workloads {
		if w.Optional {
			names = append(names, w.Name)
		}
	}
	for _, x := range s.expanded(ideal).Subjects {
		if x.Optional {
			names = append(names, x.Name)
		}
	}
	return names
}

// asked returns the scenario with the optional parts that were asked for as parts like any
// other; s stays as it is.
func (s Scenario) asked(with []*regexp.Regexp) Scenario {
	optional := func(is bool, name string) bool { return is && !matchesAny(with, name) }
	s.Workloads, s.Subjects = slices.Clone(s.Workloads), slices.Clone(s.Subjects)
	for i := range s.Workloads {
		w := &s.Workloads[i]
		w.Optional = optional(w.Optional, w.Name)
	}
	for i := range s.Subjects {
		x := &s.Subjects[i]
		x.Optional = optional(x.Optional, x.Name)
	}
	return s
}

func matchesAny(all []*regexp.Regexp, name string) bool {
	return slices.ContainsFunc(all, func(r *regexp.Regexp) bool { return r.MatchString(name) })
}

// checkWith returns a ScenarioError where something is asked for that none of the scenarios
// has. What is no longer optional, or never was, may be asked for.
func (o *Options) checkWith(all []Scenario) error {
	var names, optional []string
	for _, s := range all {
		optional = append(optional, s.Optional()...)
		for _, w := range s.Workloads {
			names = append(names, w.Name)
		}
		for _, x := range s.expanded(ideal).Subjects {
			names = append(names, x.Name)
		}
	}
	for _, r := range o.With {
		if slices.ContainsFunc(names, r.MatchString) {
			continue
		}
		if len(optional) == 0 {
			return wrong("%q is asked for; expected nothing to be, as nothing is optional here", r)
		}
		return wrong("%q matches no workload and no subject; expected to match some of those that are optional: %s", r, strings.Join(optional, ", "))
	}
	return nil
}

// everything matches every name.
var everything = []*regexp.Regexp{regexp.MustCompile("")}
