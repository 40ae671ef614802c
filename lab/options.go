package lab

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Options say how to run a scenario. The zero value runs it as it is written.
type Options struct {
	// Rounds replaces the scenario's rounds, up to 1000; 0 keeps them.
	Rounds int
	// Duration replaces the window of every Throughput workload, from
	// 100 ms; 0 keeps them.
	Duration time.Duration
	// Only keeps the runs whose "workload/subject" it matches; nil keeps
	// all.
	Only *regexp.Regexp
	// Subjects are compared in addition to the scenario's own.
	Subjects []Subject
	// Out is the path of a file that the report is written to as JSON; ""
	// writes none. An existing file is replaced.
	Out string
	// Progress is told how far the run is: a line that is rewritten when it
	// is a terminal, otherwise a line for each workload. Nil is told
	// nothing. An error of writing to it is ignored.
	Progress io.Writer
	// Self is the executable that has the subcommand "load", and that
	// "{self}" in a subject's command stands for; "" is the running one.
	Self string
	// Command is what the report shows as the command that made it; "" is
	// the running process's own command line.
	Command string
}

// apply returns the scenario with the options applied to it. The caller's
// scenario stays as it is.
func (o *Options) apply(s Scenario) (Scenario, error) {
	if o.Rounds != 0 {
		s.Rounds = o.Rounds
	}
	s.Subjects = slices.Concat(s.Subjects, o.Subjects)
	s.Workloads = slices.Clone(s.Workloads)
	for i := range s.Workloads {
		if o.Duration != 0 && s.Workloads[i].Kind == Throughput {
			s.Workloads[i].Duration = o.Duration
		}
	}
	return s, s.check()
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

// openOut makes sure, before anything is measured, that Out can be written.
func (o *Options) openOut() (*os.File, error) {
	if o.Out == "" {
		return nil, nil
	}
	f, err := os.OpenFile(o.Out, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return nil, fmt.Errorf("cannot write the report: %w", err)
	}
	return f, nil
}

// writeOut replaces the content of the file with the report, and closes it.
func writeOut(f *os.File, report any) error {
	if f == nil {
		return nil
	}
	err := f.Truncate(0)
	if err == nil {
		err = writeJSON(f, report)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("cannot write the report: %w", err)
	}
	return nil
}
