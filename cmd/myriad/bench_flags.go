package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/myriad-go/myriad/lab"
)

// benchFlags are the flags of a scenario.
type benchFlags struct {
	rounds         int
	duration       time.Duration
	only           string
	with           []string
	subjects       []string
	out            string
	scale          string
	connections    int
	repeats        int
	trace, profile string
	resume         string
}

// add adds the flags of scenarios.
func (f *benchFlags) add(flags *pflag.FlagSet) {
	f.addScale(flags)
	flags.IntVar(&f.rounds, "rounds", 0, "how often each subject is run under each workload (default: the scenario's own)")
	flags.DurationVar(&f.duration, "duration", 0, "measure each run of throughput for this long (default: the workload's own)")
	flags.StringVar(&f.only, "only", "", "run only what matches this `REGEXP`, as WORKLOAD/SUBJECT")
	flags.StringSliceVar(&f.with, "with", nil,
		"run also the optional subjects and workloads whose names this `REGEXP` matches; several are separated by commas (\"bench list\" has the names)")
	flags.StringArrayVar(&f.subjects, "subject", nil,
		"compare this server too, as `NAME=COMMAND`, or NAME:APP,APP=COMMAND where it serves only some apps; "+
			"{addr}, {port} and {app} (echo, lines, sink, http, wait, pow or sha) are filled in, "+
			"and {cert}, {key} and {heartbeat} where there is TLS or a heartbeat (repeatable)")
	flags.StringVar(&f.out, "out", "", "write the report to this `DIR` (default: bench-SCENARIO-DATE-TIME here)")
	flags.StringVar(&f.resume, "resume", "", "run what is missing in this `DIR` of an earlier bench")
	flags.IntVar(&f.repeats, "repeats", 2, "repeat a run at most `N` times that something else on the machine has disturbed")
	flags.StringVar(&f.trace, "trace", "", "capture a runtime trace of the servers that match this `REGEXP`, as WORKLOAD/SUBJECT")
	flags.StringVar(&f.profile, "profile", "", "capture a CPU profile of the servers that match this `REGEXP`, as WORKLOAD/SUBJECT")
}

// addScale adds the flags that say how large scenarios are.
func (f *benchFlags) addScale(flags *pflag.FlagSet) {
	flags.StringVar(&f.scale, "scale", "", "run at this `SCALE`: small, full, or a factor for connections and times such as 0.5 (default: full)")
	flags.IntVar(&f.connections, "connections-max", 0, "have `N` connections, or goroutines, at most in each workload (default: the workload's own)")
}

// options checks the flags and turns them into the lab's options.
func (f *benchFlags) options(cmd *cobra.Command, chosen ...lab.Scenario) (lab.Options, error) {
	o := lab.Options{
		Rounds:      f.rounds,
		Duration:    f.duration,
		Scale:       f.scale,
		Connections: f.connections,
		Repeats:     f.repeats,
		Progress:    os.Stderr,
		Command:     strings.Join(append([]string{"myriad"}, os.Args[1:]...), " "),
	}
	if err := f.check(cmd); err != nil {
		return o, err
	}
	if f.repeats == 0 {
		o.Repeats = -1 // which is never
	}
	for _, r := range []struct {
		flag, text string
		to         **regexp.Regexp
	}{{"only", f.only, &o.Only}, {"trace", f.trace, &o.Trace}, {"profile", f.profile, &o.Profile}} {
		if r.text == "" {
			continue
		}
		compiled, err := expression(r.flag, r.text)
		if err != nil {
			return o, err
		}
		*r.to = compiled
	}
	for _, text := range f.with {
		compiled, err := expression("with", text)
		if err != nil {
			return o, err
		}
		o.With = append(o.With, compiled)
	}
	for _, text := range f.subjects {
		parse := lab.ParseSubject
		if len(chosen) == 1 {
			parse = chosen[0].ParseSubject
		}
		subject, err := parse(text)
		if err != nil {
			return o, usagef("--subject: %w", err)
		}
		o.Subjects = append(o.Subjects, subject)
	}
	return o, nil
}

// expression is the value of a flag that is one.
func expression(flag, text string) (*regexp.Regexp, error) {
	compiled, err := regexp.Compile(text)
	if err != nil {
		return nil, usagef("--%s is %q: %w; expected a regular expression", flag, text, err)
	}
	return compiled, nil
}

// check looks at the flags whose values alone can be wrong.
func (f *benchFlags) check(cmd *cobra.Command) error {
	changed := cmd.Flags().Changed
	switch {
	case f.rounds < 0 || f.rounds == 0 && changed("rounds"):
		return usagef("--rounds is %d; expected at least 1", f.rounds)
	case f.duration < 0 || f.duration == 0 && changed("duration"):
		return usagef("--duration is %v; expected more than 0", f.duration)
	case f.connections < 0 || f.connections == 0 && changed("connections-max"):
		return usagef("--connections-max is %d; expected at least 1", f.connections)
	case changed("with") && (len(f.with) == 0 || slices.Contains(f.with, "")):
		return usagef("--with has an empty name; expected what is optional, as \"bench list\" has it")
	case f.repeats < 0 || f.repeats > lab.MaxRepeats:
		return usagef("--repeats is %d; expected 0 to %d", f.repeats, lab.MaxRepeats)
	}
	return nil
}

// isJSON says whether a path is that of a file with a report, as some commands write it.
func isJSON(out string) bool { return filepath.Ext(out) == ".json" }

// minutes writes a time as whole minutes, rounded up.
func minutes(d time.Duration) string {
	if d <= time.Minute {
		return "a minute"
	}
	return fmt.Sprintf("%.0f minutes", math.Ceil(d.Minutes()))
}
