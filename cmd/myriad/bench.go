package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/lab"
)

func newBench() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench SCENARIO",
		Short: "Compare servers side by side under the same load",
		Long: `Compare servers side by side under the same load.

Server and load generator are processes of their own, pinned to CPUs of their
own where there are at least two and the workload does not say otherwise. The
subjects are run in turn, in rounds.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usagef("no scenario given; expected one of %s", strings.Join(below(cmd), ", "))
		},
	}
	models := myriad.Models()
	for _, s := range []lab.Scenario{lab.Quick(), lab.Peers(models), lab.Models(models), lab.TLSCosts(models)} {
		cmd.AddCommand(newScenario(s))
	}
	cmd.AddCommand(newHeartbeat(), newIdle(), newMillion(), newSoak(), newOverload())
	return cmd
}

// newHeartbeat is a scenario that is made for a number of connections.
func newHeartbeat() *cobra.Command {
	connections := lab.BeatConnections
	models := myriad.Models()
	cmd := newScenarioOf(lab.HeartbeatCosts(models, connections), func() lab.Scenario {
		return lab.HeartbeatCosts(models, connections)
	})
	cmd.Flags().IntVarP(&connections, "connections", "n", connections, "hold `N` connections")
	return cmd
}

// benchFlags are the flags of a scenario.
type benchFlags struct {
	rounds   int
	duration time.Duration
	only     string
	subjects []string
	out      string
}

func newScenario(s lab.Scenario) *cobra.Command {
	return newScenarioOf(s, func() lab.Scenario { return s })
}

// newScenarioOf is a scenario that flags can change: made makes it when they are
// known.
func newScenarioOf(s lab.Scenario, made func() lab.Scenario) *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   s.Name,
		Short: s.Question,
		Long:  s.Question + "\n\nIt takes about " + minutes(s.Takes()) + ", unless flags say otherwise.",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return bench(cmd, made(), f) },
	}
	flags := cmd.Flags()
	flags.IntVar(&f.rounds, "rounds", s.Rounds, "how often each subject is run under each workload")
	flags.DurationVar(&f.duration, "duration", 0, "measure each throughput run for this long (default: the workload's own)")
	flags.StringVar(&f.only, "only", "", "run only what matches this `REGEXP`, as WORKLOAD/SUBJECT")
	flags.StringArrayVar(&f.subjects, "subject", nil,
		"compare this server too, as `NAME=COMMAND`, or NAME:APP,APP=COMMAND where it serves only some apps; "+
			"{addr}, {port} and {app} (echo, lines, sink, http, wait or pow) are filled in, "+
			"and {cert}, {key} and {heartbeat} where there is TLS or a heartbeat (repeatable)")
	flags.StringVar(&f.out, "out", "bench-"+s.Name+".json", "write every run to this `FILE`")
	return cmd
}

// minutes writes a time as whole minutes, rounded up.
func minutes(d time.Duration) string {
	if d <= time.Minute {
		return "a minute"
	}
	return fmt.Sprintf("%.0f minutes", math.Ceil(d.Minutes()))
}

// bench runs a scenario and prints its report.
func bench(cmd *cobra.Command, s lab.Scenario, f benchFlags) error {
	o, err := f.options(cmd)
	if err != nil {
		return err
	}
	report, err := lab.Run(cmd.Context(), s, o)
	if wrong, ok := errors.AsType[lab.ScenarioError](err); ok {
		return usageError{wrong}
	}
	if report == nil {
		return err
	}
	return printReport(cmd, report, f.out, len(report.Runs), err)
}

// report is what a scenario has found.
type report interface {
	WriteText(w io.Writer) error
	Failed() int
}

// printReport prints a report of so many runs and says where they were written to.
// It returns err, or an error when runs have failed.
func printReport(cmd *cobra.Command, r report, out string, runs int, err error) error {
	err = errors.Join(err, r.WriteText(cmd.OutOrStdout()))
	if err == nil && out != "" {
		fmt.Fprintf(cmd.OutOrStdout(), "\nevery run: %s\n", out)
	}
	if err != nil {
		return err
	}
	if failed := r.Failed(); failed > 0 {
		return fmt.Errorf("%d of %d runs failed", failed, runs)
	}
	return nil
}

// options checks the flags and turns them into the lab's options.
func (f *benchFlags) options(cmd *cobra.Command) (lab.Options, error) {
	o := lab.Options{
		Rounds:   f.rounds,
		Duration: f.duration,
		Out:      f.out,
		Progress: os.Stderr,
		Command:  strings.Join(append([]string{"myriad"}, os.Args[1:]...), " "),
	}
	if f.rounds < 1 {
		return o, usagef("--rounds is %d; expected at least 1", f.rounds)
	}
	if f.duration < 0 || (f.duration == 0 && cmd.Flags().Changed("duration")) {
		return o, usagef("--duration is %v; expected more than 0", f.duration)
	}
	if f.only != "" {
		only, err := regexp.Compile(f.only)
		if err != nil {
			return o, usagef("--only is %q: %w; expected a regular expression", f.only, err)
		}
		o.Only = only
	}
	for _, text := range f.subjects {
		subject, err := lab.ParseSubject(text)
		if err != nil {
			return o, usagef("--subject: %w", err)
		}
		o.Subjects = append(o.Subjects, subject)
	}
	return o, nil
}
