// Package scenario has scenarios as data: the servers that are compared, the workloads that
// are applied to each, the tables of others and the claims that the figures are held
// against. A scenario is read from a TOML file and says nothing of how it is run.
package scenario

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Scenario is a question to the machine, as data.
type Scenario struct {
	// Name is what the scenario is called on the command line.
	Name string `json:"name" toml:"name"`
	// Question says in one sentence what it asks.
	Question string `json:"question" toml:"question"`
	// About is a paragraph or two: how its figures are to be read.
	About string `json:"about,omitempty" toml:"about"`
	// Subjects are the servers to compare, at most 64.
	Subjects []Subject `json:"subjects" toml:"subject"`
	// Workloads are the loads to apply, at most 64.
	Workloads []Workload `json:"workloads" toml:"workload"`
	// Baseline names the subject to which the others are compared. It may be missing in
	// Subjects; then no ratio is shown. In a file the default is the first subject.
	Baseline string `json:"baseline" toml:"baseline"`
	// Auto names the subject that chooses for itself: the report says how it compares with
	// the best of the others. "" is none.
	Auto string `json:"auto,omitempty" toml:"auto"`
	// Main is the figure that tables begin with, with its ± and its ratio to the baseline.
	// "" is the first that a workload has of those that the probes say.
	Main string `json:"main,omitempty" toml:"main"`
	// Rounds is how often each subject is run under each workload, from 1 to 1000. In a
	// file the default is 3.
	Rounds int `json:"rounds" toml:"rounds"`
	// Answer is what the report begins with: a sentence of several clauses. The figure of
	// the first is its picture.
	Answer []Clause `json:"answer,omitempty" toml:"answer"`
	// References are the tables of others that are reproduced.
	References []ReferenceTable `json:"published,omitempty" toml:"published"`
	// Claims are what the figures are held against.
	Claims []Claim `json:"claims,omitempty" toml:"claim"`
	// Scales are what the scenario becomes at a scale, by the scale's name.
	Scales map[string]Scale `json:"scales,omitempty" toml:"scale"`

	// Notes are sentences on what this machine and the options have changed of it.
	Notes []string `json:"-" toml:"-"`
}

// Error says what is wrong with a scenario or with the options to run it, and what was
// expected. Nothing has been started.
type Error string

func (e Error) Error() string { return string(e) }

// Errorf makes an Error.
func Errorf(format string, args ...any) error { return Error(fmt.Sprintf(format, args...)) }

const (
	maxRounds = 1000
	// MaxParts bounds the subjects and the workloads of a scenario.
	MaxParts = 64
)

// Check returns an Error when the scenario cannot be run.
func (s *Scenario) Check() error {
	if s.Rounds < 1 || s.Rounds > maxRounds {
		return Errorf("%d rounds; expected 1 to %d", s.Rounds, maxRounds)
	}
	if n := len(s.Subjects); n < 1 || n > MaxParts {
		return Errorf("%d subjects; expected 1 to %d", n, MaxParts)
	}
	if n := len(s.Workloads); n < 1 || n > MaxParts {
		return Errorf("%d workloads; expected 1 to %d", n, MaxParts)
	}
	names := make(map[string]bool)
	for _, x := range s.Subjects {
		if err := cmp.Or(x.validate(), addUniqueName(names, "subject", x.Name)); err != nil {
			return err
		}
	}
	clear(names)
	for _, w := range s.Workloads {
		if err := cmp.Or(w.validate(), addUniqueName(names, "workload", w.Name)); err != nil {
			return err
		}
	}
	return nil
}

// addUniqueName says that a name was seen before, and keeps it.
func addUniqueName(seen map[string]bool, what, name string) error {
	if seen[name] {
		return Errorf("two %ss are named %q; expected a name for each", what, name)
	}
	seen[name] = true
	return nil
}

func (s *Scenario) addNote(format string, args ...any) {
	s.Notes = append(slices.Clip(s.Notes), fmt.Sprintf(format, args...))
}

// FindSubject finds a subject by its name, nil where there is none.
func (s *Scenario) FindSubject(name string) *Subject {
	i := slices.IndexFunc(s.Subjects, func(x Subject) bool { return x.Name == name })
	if i < 0 {
		return nil
	}
	return &s.Subjects[i]
}

// FindWorkload finds a workload by its name, nil where there is none.
func (s *Scenario) FindWorkload(name string) *Workload { return findWorkload(s.Workloads, name) }

func findWorkload(all []Workload, name string) *Workload {
	i := slices.IndexFunc(all, func(w Workload) bool { return w.Name == name })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// RoundsFor is how many rounds a workload has.
func (s *Scenario) RoundsFor(w Workload) int { return cmp.Or(w.Rounds, s.Rounds) }

// EstimateDuration is about how long the scenario takes.
func (s *Scenario) EstimateDuration() (all time.Duration) {
	shapes := make(map[string]bool)
	for _, w := range s.Workloads {
		if p := w.FindPhase(Jobs); p != nil && !shapes[p.Shape] {
			shapes[p.Shape] = true
			all += estimatedCalibrationRuns * (time.Duration(p.WarmUp) + p.CalibrationTime() + time.Second)
		}
		for _, x := range s.Subjects {
			if x.CanRun(w) {
				all += time.Duration(s.RoundsFor(w)) * w.EstimateDuration()
			}
		}
	}
	return all
}

// estimatedCalibrationRuns is about how many closed loops measure a capacity.
const estimatedCalibrationRuns = 11

// Step is a run that is planned.
type Step struct {
	Scenario string
	Workload Workload
	Subject  Subject
	Round    int // from 1
}

// WorkloadAndSubject is how --only knows the step.
func (s Step) WorkloadAndSubject() string { return s.Workload.Name + "/" + s.Subject.Name }

// PlanSteps lists the runs of a scenario in their order: workload by workload, round by round,
// the subjects that serve it in turn, starting with another one each round. Where only is
// set, it keeps the pairs whose "workload/subject" it matches.
func (s *Scenario) PlanSteps(only *regexp.Regexp) (steps []Step, err error) {
	for _, w := range s.Workloads {
		subjects := slices.DeleteFunc(slices.Clone(s.Subjects), func(x Subject) bool {
			return !x.CanRun(w) || !matchesOnly(only, w, x)
		})
		for round := range s.RoundsFor(w) {
			for i := range subjects {
				steps = append(steps, Step{s.Name, w, subjects[(i+round)%len(subjects)], round + 1})
			}
		}
	}
	if len(steps) > 0 {
		return steps, nil
	}
	return nil, Errorf("%q matches no run; expected to match a WORKLOAD/SUBJECT such as %q",
		only, s.Workloads[0].Name+"/"+s.Subjects[0].Name)
}

// runsWorkload says whether a workload is run with any subject.
func (s *Scenario) runsWorkload(w Workload, only *regexp.Regexp) bool {
	return slices.ContainsFunc(s.Subjects, func(x Subject) bool { return x.CanRun(w) && matchesOnly(only, w, x) })
}

// matchesOnly says whether a pair is one of Options.Only.
func matchesOnly(only *regexp.Regexp, w Workload, x Subject) bool {
	return only == nil || only.MatchString(w.Name+"/"+x.Name)
}

// JoinWords writes words as "a, b and c".
func JoinWords(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " and " + words[last]
}
