package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/tools/internal/lab/app"
	"github.com/myriad-go/myriad/tools/internal/lab/probe"
	"github.com/myriad-go/myriad/tools/internal/lab/report"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/run"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
	"github.com/myriad-go/myriad/tools/internal/quantity"
)

// allScenarios is the command-line argument that stands for all built-in scenarios.
const allScenarios = "all"

func newBenchCommand() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "bench SCENARIO|FILE.toml|all ...",
		Short: "Compare servers side by side under the same load",
		Long: `Compare servers side by side under the same load.

"myriad bench list" lists the built-in scenarios and how long they take; "all" runs
them all. For a scenario of your own, edit a copy ("myriad bench show quick > mine.toml");
docs/scenarios.md explains the keys. Flags apply to all scenarios.

Server and load generator run as separate processes, pinned to separate CPUs if there
are at least two and the workload does not disable it. Subjects run in turn, in rounds.
The report lists what this machine cannot run, with the reason. Ctrl-C stops the bench;
the report then contains the runs so far.

The exit status is 1 if a run failed, an answer was wrong, or a required claim of a scenario was
not met; with --strict also if a claim about size or speed was not met.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, names []string) error {
			if len(names) == 0 {
				return usagef("no scenario given; expected one of %s, %s, or a file such as mine.toml", strings.Join(scenario.BuiltInNames(), ", "), allScenarios)
			}
			return f.runAndPrintScenarios(cmd, names)
		},
	}
	f.addFlags(cmd.Flags())
	cmd.AddCommand(newBenchListCommand(), newShowScenarioFileCommand())
	return cmd
}

type benchFlags struct {
	options  run.Options
	peers    string
	subjects []string
}

func (f *benchFlags) addFlags(flags *pflag.FlagSet) {
	o := &f.options
	f.addScaleFlags(flags)
	addParsedFlag(flags, &o.Rounds, quantity.ParsePositive, "rounds", "", "run each subject `N` times under each workload (default: the scenario's)")
	addParsedFlag(flags, &o.Duration, quantity.ParsePositiveDurationOrSeconds, "duration", "", "measure each run for this `TIME` (default: the workload's)")
	addParsedFlag(flags, &o.Only, parseRegexp, "only", "", "run only WORKLOAD/SUBJECT pairs that match this `REGEXP`")
	flags.StringVar(&f.peers, "peers", "", "executable `FILE` of the peers (to build it: go build -C tools/peers -o FILE ., where FILE is an absolute path): adds ants, pond and failsafe to overload; netpoll, gnet and nbio to peers and idle; fasthttp to peers and web; gobwas to web")
	flags.StringArrayVar(&f.subjects, "subject", nil,
		"add this server, as `NAME=COMMAND`, or NAME:APP,APP=COMMAND if it serves only some apps; "+
			"{addr}, {port} and {app} ("+app.List+") are filled in, "+
			"and {cert}, {key} and {heartbeat} with TLS or heartbeats (repeatable)")
	flags.StringVar(&o.Dir, "out", "", "write the report to this `DIR` (default bench-SCENARIO-DATE-TIME)")
	flags.BoolVar(&o.Strict, "strict", false, "fail also if a claim about size or speed is not met")
}

func (f *benchFlags) addScaleFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.options.Scale, "scale", "", "run at this `SCALE`: small, full, or one that the file defines (default full)")
	addParsedFlag(flags, &f.options.Connections, quantity.ParsePositive, "connections-max", "n", "limit each workload to `N` connections or goroutines, such as 100k (default: the workload's)")
}

func parseRegexp(text string) (*regexp.Regexp, error) {
	compiled, err := regexp.Compile(text)
	if err != nil {
		return nil, quantity.Error("a regular expression: " + err.Error())
	}
	return compiled, nil
}

func (f *benchFlags) runAndPrintScenarios(cmd *cobra.Command, names []string) error {
	if filepath.Ext(f.options.Dir) == ".json" {
		return usagef("--out is %q; expected a directory, to which report.json is written", f.options.Dir)
	}
	scenarios, err := f.readScenariosAndSetPeersExecutable(names)
	if err != nil {
		return err
	}
	o := f.options
	o.Write, o.Evaluate, o.Progress = report.WriteJSONAndHTMLFiles, report.SetVerdicts, cmd.ErrOrStderr()
	o.Command = strings.Join(append([]string{"myriad"}, os.Args[1:]...), " ")
	for _, text := range f.subjects {
		subject, err := scenario.ParseSubject(text, len(scenarios) == 1 && scenarios[0].RunsJobs())
		if err != nil {
			return usagef("--subject: %w", err)
		}
		o.Subjects = append(o.Subjects, subject)
	}
	if o.Dir == "" {
		o.Dir = "bench"
		for _, s := range scenarios {
			o.Dir += "-" + s.Name
		}
		o.Dir += "-" + time.Now().Format("20060102-150405")
	}
	set, err := run.RunScenarios(cmd.Context(), scenarios, o)
	return printBenchResultsAndCheckFailures(cmd, set, o.Dir, err)
}

// readScenariosAndSetPeersExecutable reads the named scenarios. If --peers is given, it adds that executable to the
// scenarios that need one.
func (f *benchFlags) readScenariosAndSetPeersExecutable(names []string) (scenarios []scenario.Scenario, err error) {
	if i := slices.Index(names, allScenarios); i >= 0 {
		names = slices.Concat(names[:i], scenario.BuiltInNames(), names[i+1:])
	}
	seen, peersUsed := make(map[string]bool), f.peers == ""
	for _, name := range names {
		read := probe.ScenarioReader.ReadBuiltIn
		if filepath.Ext(name) == ".toml" || strings.ContainsAny(name, `/\`) {
			read = probe.ScenarioReader.ReadFile
		}
		s, err := read(name)
		if err == nil && f.peers != "" && len(s.SubjectsNeedingPeers()) > 0 {
			peersUsed = true
			s, err = s.WithPeersExecutable(f.peers)
		}
		if err != nil {
			return nil, usageError{err}
		}
		if seen[s.Name] {
			return nil, usagef("two scenarios are named %q; expected distinct names", s.Name)
		}
		seen[s.Name] = true
		scenarios = append(scenarios, s)
	}
	if !peersUsed {
		return nil, usagef("--peers is given, but no subject of %s needs it; expected a scenario such as overload or peers", strings.Join(names, ", "))
	}
	return scenarios, nil
}

// printBenchResultsAndCheckFailures prints the reports of set and the name of their directory. It returns runErr if
// runErr is not nil. Otherwise, it returns an error if a run has failed or a required claim is not met.
func printBenchResultsAndCheckFailures(cmd *cobra.Command, set *result.Set, dir string, runErr error) error {
	if wrong, ok := errors.AsType[scenario.Error](runErr); ok {
		return usageError{wrong}
	}
	if set == nil || len(set.Reports) == 0 {
		return runErr
	}
	runErr = errors.Join(runErr, report.WriteTextReport(cmd.OutOrStdout(), set))
	fmt.Fprintf(cmd.OutOrStdout(), "\nreport in %s\n", dir)
	if runErr != nil {
		return runErr
	}
	switch runs, claims := set.CountFailedRunsAndClaims(); {
	case runs > 0:
		return fmt.Errorf("%d of %d runs failed; the report lists the causes", runs, set.CountRuns())
	case claims > 0:
		return fmt.Errorf("%s not met; the report lists them", format.Plural(int64(claims), "claim was", "claims were"))
	}
	return nil
}

func newBenchListCommand() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the built-in scenarios and how long they take on this machine",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return f.printBuiltInScenarios(cmd) },
	}
	f.addScaleFlags(cmd.Flags())
	return cmd
}

func (f *benchFlags) printBuiltInScenarios(cmd *cobra.Command) error {
	out := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	for _, name := range scenario.BuiltInNames() {
		s, err := probe.ScenarioReader.ReadBuiltIn(name)
		if err == nil {
			s, err = f.options.ApplyForThisMachine(s)
		}
		if err != nil {
			return usageError{err}
		}
		fmt.Fprintf(out, "%s\t%s\t%s\n", name, formatMinutesRoundedUp(s.EstimateDuration()), s.Question)
	}
	return out.Flush()
}

func formatMinutesRoundedUp(d time.Duration) string {
	if d <= time.Minute {
		return "a minute"
	}
	return fmt.Sprintf("%.0f minutes", math.Ceil(d.Minutes()))
}

func newShowScenarioFileCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show SCENARIO",
		Short: "Print the file of a built-in scenario, to copy and edit",
		Long: `Print the file of a built-in scenario, to copy and edit.

"myriad bench list" prints the names of the scenarios.`,
		Example: "  myriad bench show quick > mine.toml",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := scenario.BuiltInFile(args[0])
			if err != nil {
				return usageError{err}
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
}
