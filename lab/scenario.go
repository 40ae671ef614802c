// Package lab runs experiments: it puts servers side by side under the same
// load and reports what it saw.
//
// A Scenario is a question to the machine, as data: Subjects (servers, each a
// command line) to compare, and Workloads (load to apply). Run answers it with
// a Report. Every pair of workload and subject is run in each round, the
// subjects in turn and rotated from round to round, so that whatever else
// happens on the machine meets all of them alike. One subject under one
// workload in one round is a run; its figures stay in the report raw, as a
// RunRecord.
//
// Server and load generator are processes of their own, pinned to CPUs of
// their own where there are at least two. Who was the bottleneck, what else
// the machine did, and every rule that a run broke stands beside its figures;
// no run is ever dropped.
package lab

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"time"
)

// Scenario is a question to the machine, as data.
type Scenario struct {
	// Name is what the scenario is called on the command line.
	Name string `json:"name" toml:"name"`
	// Question says in one sentence what it asks.
	Question string `json:"question" toml:"question"`
	// Subjects are the servers to compare, at most 64.
	Subjects []Subject `json:"subjects" toml:"subject"`
	// Workloads are the loads to apply, at most 64.
	Workloads []Workload `json:"workloads" toml:"workload"`
	// Baseline names the subject to which the others are compared. It may
	// be missing in Subjects; then no ratio is shown. In a file the default is the
	// first subject.
	Baseline string `json:"baseline" toml:"baseline"`
	// Auto names the subject that chooses for itself. Under each Throughput
	// workload the report says how it compares with the best of the others.
	// It may be missing in Subjects, and "" is none.
	Auto string `json:"auto,omitempty" toml:"auto"`
	// Rounds is how often each subject is run under each workload, from 1
	// to 1000. In a file the default is 3.
	Rounds int `json:"rounds" toml:"rounds" default:"3" least:"1"`
	// About is a paragraph or two: what it asks, and how its figures are to be read.
	About string `json:"about,omitempty" toml:"about"`
	// Published are the tables of others that are reproduced.
	Published []Published `json:"published,omitempty" toml:"published"`
	// Scales are what the scenario becomes at a scale, by the scale's name.
	Scales map[string]Scale `json:"scales,omitempty" toml:"scale"`

	// notes are sentences on what this machine and the options have changed of it.
	notes []string
	// only is Options.Only, once they are applied: of what it leaves out are no notes.
	only *regexp.Regexp
}

// note keeps a sentence for the report. Copies of a scenario don't share it.
func (s *Scenario) note(format string, args ...any) {
	s.notes = append(slices.Clip(s.notes), fmt.Sprintf(format, args...))
}

// chosen says whether a subject is run under a workload.
func (s *Scenario) chosen(w Workload, x Subject) bool {
	return x.serves(w) && (s.only == nil || s.only.MatchString(w.Name+"/"+x.Name))
}

// leavesOut says whether a workload is not run because of Options.Only.
func (s *Scenario) leavesOut(w Workload) bool {
	return s.only != nil && !slices.ContainsFunc(s.Subjects, func(x Subject) bool { return s.chosen(w, x) })
}

// ScenarioError says what is wrong with a scenario or with the options to run
// it, and what was expected. Nothing has been started when Run returns it.
type ScenarioError string

func (e ScenarioError) Error() string { return string(e) }

// wrong makes a ScenarioError.
func wrong(format string, args ...any) error {
	return ScenarioError(fmt.Sprintf(format, args...))
}

const (
	maxRounds = 1000
	// maxParts bounds the subjects and the workloads of a scenario.
	maxParts = 64
)

// check returns a ScenarioError when the scenario cannot be run.
func (s *Scenario) check() error {
	if s.Rounds < 1 || s.Rounds > maxRounds {
		return wrong("%d rounds; expected 1 to %d", s.Rounds, maxRounds)
	}
	if n := len(s.Subjects); n < 1 || n > maxParts {
		return wrong("%d subjects; expected 1 to %d", n, maxParts)
	}
	if n := len(s.Workloads); n < 1 || n > maxParts {
		return wrong("%d workloads; expected 1 to %d", n, maxParts)
	}
	names := make(map[string]bool)
	for _, subject := range s.Subjects {
		if err := cmp.Or(subject.check(), unlike(names, "subject", subject.Name)); err != nil {
			return err
		}
	}
	clear(names)
	for _, workload := range s.Workloads {
		if err := cmp.Or(workload.check(), unlike(names, "workload", workload.Name)); err != nil {
			return err
		}
	}
	return nil
}

// unlike says that a name of a subject or a workload is among those seen, and keeps it.
func unlike(seen map[string]bool, of, name string) error {
	if seen[name] {
		return wrong("two %ss are named %q; expected a name for each", of, name)
	}
	seen[name] = true
	return nil
}

// Takes is about how long the scenario takes.
func (s *Scenario) Takes() time.Duration {
	all := s.calibrates()
	for _, w := range s.Workloads {
		for _, x := range s.Subjects {
			if x.serves(w) {
				all += time.Duration(s.roundsOf(w)) * w.estimate()
			}
		}
	}
	return all
}

// roundsOf is how many rounds a workload has.
func (s *Scenario) roundsOf(w Workload) int { return cmp.Or(w.Rounds, s.Rounds) }

// step is a run that is planned.
type step struct {
	workload Workload
	subject  Subject
	round    int // from 1

	// scenario and attempt are filled in when it is run.
	scenario string
	attempt  int // from 1
}

// plan lists the runs of a scenario in their order: workload by workload,
// round by round, the subjects that serve its app in turn, starting with another
// one each round. Where only is set, it keeps the pairs whose "workload/subject"
// it matches.
func (s *Scenario) plan(only *regexp.Regexp) ([]step, error) {
	var steps []step
	for _, w := range s.Workloads {
		subjects := slices.DeleteFunc(slices.Clone(s.Subjects), func(x Subject) bool {
			return !x.serves(w) || only != nil && !only.MatchString(w.Name+"/"+x.Name)
		})
		for round := range s.roundsOf(w) {
			for i := range subjects {
				subject := subjects[(i+round)%len(subjects)]
				steps = append(steps, step{workload: w, subject: subject, round: round + 1})
			}
		}
	}
	if len(steps) == 0 {
		if whole := s.asked(everything); len(s.Optional()) > 0 {
			if _, err := whole.plan(only); err == nil {
				return nil, wrong("%q matches only what is optional; expected that to be asked for, as by --with", only)
			}
		}
		return nil, wrong("%q matches no run; expected to match a WORKLOAD/SUBJECT such as %q",
			only, s.Workloads[0].Name+"/"+s.Subjects[0].Name)
	}
	return steps, nil
}

// secured says whether a workload has TLS.
func (s *Scenario) secured() bool {
	return slices.ContainsFunc(s.Workloads, func(w Workload) bool { return w.TLS })
}
