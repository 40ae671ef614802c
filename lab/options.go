package lab

import (
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

// MaxRepeats is the most that Options.Repeats may be.
const MaxRepeats = 10

// Options say how to run a scenario. The zero value runs it as it is written.
type Options struct {
	// Rounds replaces the scenario's rounds, up to 1000; 0 keeps them.
	Rounds int
	// Duration replaces that of every Throughput, Flood, Offering and Soaking workload,
	// from 100 ms; 0 keeps them.
	Duration time.Duration
	// Connections is the most that a workload has, or goroutines: larger ones are made as
	// small. 0 keeps them.
	Connections int
	// Only keeps the runs whose "workload/subject" it matches; nil keeps
	// all.
	Only *regexp.Regexp
	// With asks for what is optional: the subjects and workloads whose names any of these
	// matches. RunAll fails where one of them matches none in any of its scenarios, optional
	// or not.
	With []*regexp.Regexp
	// Subjects are compared in addition to the scenario's own.
	Subjects []Subject
	// Dir is the directory of RunAll's report: report.html, report.md and report.json,
	// what is needed to resume, and what was captured. "" makes none. It is made; one
	// that exists has to be empty.
	Dir string
	// Scale is the name of a scale of the scenarios, or a factor such as "0.5" or "2"
	// for connections and times; "" runs them as they are written.
	Scale string
	// Repeats is how often a run is made again that something else on the machine has
	// disturbed, up to MaxRepeats; negative is never. Default 2. Runs of kind Idle,
	// Parking and Holding are marked, but never made again: their figures are of memory,
	// which does not suffer. Those of kind Soaking are not marked.
	Repeats int
	// Trace and Profile capture a runtime trace, and a CPU profile, of the subjects whose
	// "workload/subject" they match, where these show them at {admin}.
	Trace, Profile *regexp.Regexp
	// Progress is told where the report will be, as soon as the runs begin, and how far
	// they are: a line that is rewritten when it is a terminal, otherwise a line for each
	// workload. Nil is told nothing. An error of writing to it is ignored.
	Progress io.Writer
	// Self is the executable that has the subcommand "load", and that
	// "{self}" in a subject's command stands for; "" is the running one.
	Self string
	// Command is what the report shows as the command that made it; "" is
	// the running process's own command line.
	Command string
}

// With returns the scenario as Run runs it on this machine: a subject for each model, at
// the scale and with the other options applied to it. The scenario itself stays as it
// is. A ScenarioError says what is wrong with either.
func (s Scenario) With(o Options) (Scenario, error) { return o.apply(s) }

// apply returns the scenario with the options applied to it. The caller's
// scenario stays as it is.
func (o *Options) apply(s Scenario) (Scenario, error) {
	s.Subjects, s.only = slices.Concat(s.Subjects, o.Subjects), o.Only
	s, changes, err := s.expanded(thisHost()).asked(o.With).at(o.Scale)
	if err != nil {
		return s, err
	}
	own, err := o.changes()
	if err != nil {
		return s, err
	}
	s = s.inRounds(o.Rounds, "asked for").resized(append(changes, own...))
	for i := range s.Workloads {
		s.Workloads[i].Caption = s.Workloads[i].caption()
	}
	s.bounded()
	return s, s.check()
}

// changes are what the options change of workloads beside the scale.
func (o *Options) changes() (all []change, err error) {
	if o.Connections < 0 {
		return nil, wrong("%d connections at most; expected 1 or more, or 0 to keep them", o.Connections)
	}
	if o.Connections > 0 {
		all = append(all, change{Scale{Connections: o.Connections}.limit, "at most " + thousands(float64(o.Connections)) + " connections"})
	}
	if o.Duration != 0 {
		all = append(all, change{o.replaceDuration, "duration " + o.Duration.String()})
	}
	return all, nil
}

func (o *Options) replaceDuration(w *Workload) {
	if slices.Contains([]Kind{Throughput, Flood, Offering, Soaking}, w.Kind) {
		w.Duration = o.Duration
	}
}

// self returns the executable to run.
func (o *Options) self() (string, error) {
	if o.Self != "" {
		return o.Self, nil
	}
	return os.Executable()
}

// command returns the command line to show.
func (o *Options) command() string {
	if o.Command != "" {
		return o.Command
	}
	return strings.Join(os.Args, " ")
}
