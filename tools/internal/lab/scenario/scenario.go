// Package scenario defines scenarios as data: the compared servers, the workloads, reference tables and claims.
// Scenarios are read from TOML files. Package run defines how they are run.
package scenario

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Scenario is a question about servers, with the measurements that answer the question.
type Scenario struct {
	Name     string `json:"name" toml:"name"`
	Question string `json:"question" toml:"question"`
	// About explains in a paragraph or two how to read the figures.
	About string `json:"about,omitempty" toml:"about"`
	// Subjects contains the servers to compare, at most 64.
	Subjects []Subject `json:"subjects" toml:"subject"`
	// Workloads contains the loads to apply, at most 64.
	Workloads []Workload `json:"workloads" toml:"workload"`
	// Baseline is the name of the subject with which the other subjects are compared. If it is not in Subjects, the
	// report contains no ratios. In a file, the default is the first subject.
	Baseline string `json:"baseline" toml:"baseline"`
	// Auto names the subject that chooses its I/O model. The report compares it with the best other one.
	Auto string `json:"auto,omitempty" toml:"auto"`
	// Main is the name of the figure that is shown first in tables, with its ± and its ratio to the baseline. The
	// default "" is the first main figure of the workload's probes.
	Main string `json:"main,omitempty" toml:"main"`
	// Rounds is how often each subject runs under each workload, from 1 to 1000. In a file, the default is 3.
	Rounds int `json:"rounds" toml:"rounds"`
	// Answer is the report's first sentence, divided into clauses. A chart shows the figure of the first clause.
	Answer     []Clause         `json:"answer,omitempty" toml:"answer"`
	References []ReferenceTable `json:"published,omitempty" toml:"published"`
	Claims     []Claim          `json:"claims,omitempty" toml:"claim"`
	// Scales contains reduced forms of the scenario, by name.
	Scales map[string]Scale `json:"scales,omitempty" toml:"scale"`

	// Notes contains sentences about changes that this machine or the options have caused.
	Notes []string `json:"-" toml:"-"`
}

// Error is an error in a scenario or in its options. If a function returns an Error, it has not started any run.
type Error string

func (e Error) Error() string { return string(e) }

func Errorf(format string, args ...any) error { return Error(fmt.Sprintf(format, args...)) }

const (
	maxRounds = 1000
	MaxParts  = 64
)

func (s *Scenario) Validate() error {
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
		if err := cmp.Or(x.validateSubject(), addNameOrDuplicateError(names, "subject", x.Name)); err != nil {
			return err
		}
	}
	clear(names)
	for _, w := range s.Workloads {
		if err := cmp.Or(w.validateWorkload(), addNameOrDuplicateError(names, "workload", w.Name)); err != nil {
			return err
		}
	}
	return nil
}

func addNameOrDuplicateError(seen map[string]bool, kind, name string) error {
	if seen[name] {
		return Errorf("two %ss are named %q; expected distinct names", kind, name)
	}
	seen[name] = true
	return nil
}

func (s *Scenario) addNote(format string, args ...any) {
	s.Notes = append(slices.Clip(s.Notes), fmt.Sprintf(format, args...))
}

func (s *Scenario) FindSubject(name string) *Subject {
	i := slices.IndexFunc(s.Subjects, func(x Subject) bool { return x.Name == name })
	if i < 0 {
		return nil
	}
	return &s.Subjects[i]
}

func (s *Scenario) FindWorkload(name string) *Workload { return findWorkload(s.Workloads, name) }

func findWorkload(all []Workload, name string) *Workload {
	i := slices.IndexFunc(all, func(w Workload) bool { return w.Name == name })
	if i < 0 {
		return nil
	}
	return &all[i]
}

func (s *Scenario) RoundsFor(w Workload) int { return cmp.Or(w.Rounds, s.Rounds) }

func (s *Scenario) EstimateDuration() (all time.Duration) {
	shapes := make(map[string]bool)
	for _, w := range s.Workloads {
		if p := w.FindPhase(Jobs); p != nil && !shapes[p.Shape] {
			shapes[p.Shape] = true
			all += estimatedCalibrationRuns * (time.Duration(p.WarmUp) + p.CapacityRunTime() + time.Second)
		}
		for _, x := range s.Subjects {
			if x.RunsUnderWorkload(w) {
				all += time.Duration(s.RoundsFor(w)) * w.EstimateDuration()
			}
		}
	}
	return all
}

// estimatedCalibrationRuns is the approximate number of runs needed to measure the capacity for one kind of jobs.
const estimatedCalibrationRuns = 11

type Step struct {
	Scenario string
	Workload Workload
	Subject  Subject
	Round    int // counts from 1
}

func (s Step) WorkloadAndSubject() string { return s.Workload.Name + "/" + s.Subject.Name }

// PlanSteps returns the runs of a scenario, ordered by workload and then by round. In each round, every subject runs
// once. The subject that runs first changes from round to round. If filter is not nil, PlanSteps returns only runs
// whose name "workload/subject" matches.
func (s *Scenario) PlanSteps(filter *regexp.Regexp) (steps []Step, err error) {
	for _, w := range s.Workloads {
		subjects := slices.DeleteFunc(slices.Clone(s.Subjects), func(x Subject) bool {
			return !x.RunsUnderWorkload(w) || !isPairSelected(filter, w, x)
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
	return nil, Errorf("%q matches no run; expected a pattern for WORKLOAD/SUBJECT, such as %q",
		filter, s.Workloads[0].Name+"/"+s.Subjects[0].Name)
}

func (s *Scenario) hasSubjectForWorkload(w Workload, only *regexp.Regexp) bool {
	return slices.ContainsFunc(s.Subjects, func(x Subject) bool { return x.RunsUnderWorkload(w) && isPairSelected(only, w, x) })
}

func isPairSelected(filter *regexp.Regexp, w Workload, x Subject) bool {
	return filter == nil || filter.MatchString(w.Name+"/"+x.Name)
}

// JoinAsEnglishList joins words into a list such as "a, b and c".
func JoinAsEnglishList(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " and " + words[last]
}
