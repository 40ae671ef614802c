package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/tools/doctor"
	"github.com/myriad-go/myriad/tools/internal/lab/capacity"
	"github.com/myriad-go/myriad/tools/internal/lab/probe"
	"github.com/myriad-go/myriad/tools/internal/lab/report"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/run"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
	"github.com/myriad-go/myriad/tools/internal/quantity"
	"github.com/myriad-go/myriad/tools/load"
)

const planExamples = `  myriad plan --measure --rate 0.05 --memory 64Gi --cores 16 --network 10G
  myriad plan --from bench-capacity-20261123-190000 -n 10M -n 100M --spare 2
  myriad bench capacity --out c && myriad plan --from c --check --within 10%
  myriad load -c 20k --hold-before 2s --rate 10k --out run.jsonl 127.0.0.1:9000; myriad plan --from run.jsonl`

type planFlags struct {
	goal        capacity.Goal
	connections []int64
	from, out   string
	subject     string
	measure     bool
	check       bool
	within      float64
	json        bool
}

func newPlanCommand() *cobra.Command {
	f := planFlags{goal: capacity.Goal{Rate: 0.05, Size: 64, Network: 10e9, Free: 0.3, Spare: 1, Return: time.Minute}}
	cmd := &cobra.Command{
		Use:   "plan --measure|--from FILE|DIR [flags]",
		Short: "Plan machines, memory and network for many connections from a run with fewer",
		Long: `Plan machines, memory and network for many connections from a run with fewer.

The plan is for a server like the measured one. On Linux, --measure runs the smaller half
of "myriad bench capacity", with 20,000 connections, which takes a minute. --from uses an
earlier bench, or a load whose server ran on the same machine as the load.

--check plans nothing: it predicts the larger of two sizes of a bench from the smaller
one and compares them; with --within, the exit status is 1 if memory or CPU is off by
more than that percentage.

docs/capacity.md explains the arithmetic.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.planMachinesOrCheckPredictions(cmd) },
	}
	var g flagGroups
	g.addFlagGroup("Measurement", "", f.addMeasurementSourceFlags)
	g.addFlagGroup("Plan", "", f.addGoalFlags)
	g.addFlagGroup("Output", "", f.addCheckAndOutputFlags)
	g.addFlagsAndGroupedHelp(cmd)
	return cmd
}

func (f *planFlags) addMeasurementSourceFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&f.measure, "measure", false, "measure this machine now")
	flags.StringVar(&f.out, "out", "", "write the report of --measure to this `DIR` (default plan-DATE-TIME)")
	flags.StringVar(&f.from, "from", "", "plan from the directory of a bench, its report.json, or the events of a load run in `FILE`")
	flags.StringVar(&f.subject, "subject", "", "`SERVER` of the bench to plan for (default: the first), or to measure (default epoll)")
}

func (f *planFlags) addGoalFlags(flags *pflag.FlagSet) {
	g := &f.goal
	flags.VarP(&parsedListFlag[int64]{&f.connections, func(text string) ([]int64, error) {
		n, err := quantity.ParsePositive64(text)
		return []int64{n}, err
	}}, "connections", "n", "plan for `N` connections (repeatable; default 10M and 100M)")
	addParsedFlag(flags, &g.Rate, newNumberParser("a number such as 0.05 or 2"), "rate", "", "`N` messages per second on each connection; each message is answered (default 0.05)")
	addParsedFlag(flags, &g.Size, quantity.ParsePositive, "size", "", "size of a message and of its answer in `BYTES` (default 64)")
	flags.BoolVar(&g.TLS, "tls", false, "encrypt connections, also in the measurement of --measure")
	addParsedFlag(flags, &g.Unread, quantity.ParseCount, "unread", "", "unread or unsent `BYTES` in the kernel per connection (default 0)")
	addParsedFlag(flags, &g.Memory, quantity.ParsePositive64, "memory", "", "memory of each machine in `BYTES`, such as 64Gi (default: that of this machine)")
	addParsedFlag(flags, &g.Cores, quantity.ParsePositive, "cores", "", "`N` processors in each machine (default: those of this machine)")
	addParsedFlag(flags, &g.Network, newNumberParser("bits a second, such as 10G"), "network", "", "network capacity of each machine in each direction in `BITS` per second (default 10G)")
	addParsedFlag(flags, &g.Free, parsePercent, "free", "", "`PERCENT` of memory, CPU and network to keep free (default 30%)")
	addParsedFlag(flags, &g.Spare, quantity.ParseCount, "spare", "", "`N` machines may fail at the same time (default 1)")
	addParsedFlag(flags, &g.MaxPerMachine, quantity.ParsePositive64, "most", "", "put at most `N` connections on a machine (default: as many as it can hold)")
	addParsedFlag(flags, &g.Loops, quantity.ParsePositive, "loops", "", "`N` event loops in each server (default: half of the processors)")
	addParsedFlag(flags, &g.Return, quantity.ParsePositiveDurationOrSeconds, "return", "", "`TIME` within which the clients of a failed machine reconnect (default 1m)")
}

func (f *planFlags) addCheckAndOutputFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&f.check, "check", false, "predict the results of a bench's larger size from those of the smaller one, and compare them with the measured results")
	addParsedFlag(flags, &f.within, parsePercent, "within", "", "with --check, fail if memory or CPU is off by more than this `PERCENT`")
	flags.BoolVar(&f.json, "json", false, "print the plan as JSON")
}

// newNumberParser returns a function that parses a number such as 1.5k. If a text is not a number, the function returns
// a quantity.Error that describes the expected input with the given text.
func newNumberParser(expected string) func(string) (float64, error) {
	return func(text string) (float64, error) {
		n, ok := quantity.ParseNumberWithSuffix(text)
		if !ok {
			return 0, quantity.Error(expected)
		}
		return n, nil
	}
}

func parsePercent(text string) (fraction float64, _ error) {
	n, ok := quantity.ParseNumberWithSuffix(strings.TrimSuffix(text, "%"))
	if !ok || n > 1000 {
		return 0, quantity.Error("a percentage such as 10%")
	}
	return n / 100, nil
}

// validateAndComplete validates the flags and sets defaults. The defaults of --memory and --cores are the values of
// this machine, which it takes from facts. The default of --connections is 10 million and 100 million.
func (f *planFlags) validateAndComplete(facts *doctor.Facts, isFlagSet func(string) bool) error {
	switch {
	case f.measure == (f.from != ""):
		return usagef("%s given; expected one of the two", map[bool]string{true: "--measure and --from are both", false: "neither --measure nor --from is"}[f.measure])
	case f.out != "" && !f.measure:
		return usagef("--out is given without --measure; expected both")
	case f.check && f.measure:
		return usagef("--check is given with --measure; expected --from with a report of `myriad bench capacity`, which measures two sizes")
	case isFlagSet("within") && !f.check:
		return usagef("--within is given without --check; expected both")
	}
	if len(f.connections) == 0 {
		f.connections = []int64{10_000_000, 100_000_000}
	}
	g := &f.goal
	if g.Memory == 0 {
		g.Memory = facts.Meminfo.Total
	}
	if g.Cores == 0 {
		g.Cores = facts.Machine.CPUs
	}
	if g.Memory == 0 || g.Cores == 0 {
		return usagef("cannot read this machine's memory and processors; expected --memory and --cores")
	}
	for _, n := range f.connections { // before measuring, which takes a minute
		g.Connections = n
		if err := g.Validate(); err != nil {
			return usageError{err}
		}
	}
	return nil
}

func (f *planFlags) planMachinesOrCheckPredictions(cmd *cobra.Command) error {
	facts, err := doctor.Read(0)
	if err != nil {
		facts = &doctor.Facts{} // package doctor then uses its defaults
	}
	if err := f.validateAndComplete(facts, cmd.Flags().Changed); err != nil {
		return err
	}
	all, err := f.measureOrReadMeasurements(cmd)
	if err != nil {
		return err
	}
	if f.check {
		return f.printAndCheckPredictionAccuracy(cmd.OutOrStdout(), capacity.PredictFromSmallestOfSameSetup(all, facts))
	}
	m := f.fittingMeasurementWithMostPoints(all)
	switch {
	case m == nil && f.subject == "":
		return usagef("--tls is given, but the measurement was made without TLS; measure again with --tls, or omit it")
	case m == nil:
		return usagef("--subject is %q%s; expected one of the measured: %s", f.subject, map[bool]string{true: " with TLS"}[f.goal.TLS], joinQuotedUniqueSubjects(all))
	}
	f.goal.TLS = m.TLS
	if !cmd.Flags().Changed("size") {
		f.goal.Size = m.Size
	}
	planner := &capacity.Planner{Measured: *m, Facts: facts}
	var plans []*capacity.Plan
	for _, n := range f.connections {
		f.goal.Connections = n
		p, err := planner.PlanMachines(f.goal)
		if err != nil {
			return usageError{err}
		}
		plans = append(plans, p)
	}
	out := cmd.OutOrStdout()
	if f.json {
		return json.NewEncoder(out).Encode(map[string]any{"measured": m, "plans": plans})
	}
	if err := m.WriteMeasurementText(out); err != nil {
		return err
	}
	if f.goal.Size != m.Size {
		fmt.Fprintf(out, "  The plan's messages have %s bytes; the CPU time for that size was not measured.\n", format.Count(f.goal.Size))
	}
	return capacity.WritePlansSideBySide(out, plans)
}

// fittingMeasurementWithMostPoints returns the measurement with the most points for the subject of --subject. Without
// --subject, it uses the subject of the first measurement. If several measurements have the most points, it returns the
// one with the fewest connections. For a plan with TLS, it considers only measurements with TLS. If no measurement
// fits, it returns nil.
func (f *planFlags) fittingMeasurementWithMostPoints(all []capacity.MeasuredCosts) (best *capacity.MeasuredCosts) {
	for i := range all {
		m := &all[i]
		if f.subject != "" && m.Subject != f.subject || f.subject == "" && m.Subject != all[0].Subject || f.goal.TLS && !m.TLS {
			continue
		}
		if best == nil || len(m.Points) > len(best.Points) || len(m.Points) == len(best.Points) && m.Connections < best.Connections {
			best = m
		}
	}
	return best
}

func joinQuotedUniqueSubjects(all []capacity.MeasuredCosts) string {
	var names []string
	for _, m := range all {
		if name := fmt.Sprintf("%q", m.Subject); len(names) == 0 || names[len(names)-1] != name {
			names = append(names, name)
		}
	}
	return scenario.JoinAsEnglishList(names)
}

func (f *planFlags) measureOrReadMeasurements(cmd *cobra.Command) ([]capacity.MeasuredCosts, error) {
	if f.measure {
		set, err := f.runCapacityBench(cmd)
		if err != nil {
			return nil, err
		}
		return capacity.MeasurementsFromBench(set)
	}
	file, err := openReportAndDetectKind(cmd.InOrStdin(), f.from)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var all []capacity.MeasuredCosts
	if file.isBench {
		var set *result.Set
		if set, err = result.ReadSet(file.in); err == nil {
			all, err = capacity.MeasurementsFromBench(set)
		}
	} else {
		var s *load.Stream
		if s, err = load.ReadStream(file.in); err == nil {
			var m capacity.MeasuredCosts
			m, err = capacity.MeasurementFromLoad(s)
			all = []capacity.MeasuredCosts{m}
		}
	}
	if err != nil {
		return nil, usagef("%s: %s", f.from, strings.TrimPrefix(err.Error(), "load: "))
	}
	return all, nil
}

// runCapacityBench runs the built-in scenario "capacity" at the scale "small" for the model f.subject. If f.subject is
// "", runCapacityBench first sets it to the first model of the scenario.
func (f *planFlags) runCapacityBench(cmd *cobra.Command) (*result.Set, error) {
	s, err := probe.ScenarioReader.ReadBuiltIn("capacity")
	if err != nil {
		return nil, err
	}
	for i := range s.Workloads {
		s.Workloads[i].Size, s.Workloads[i].TLS = f.goal.Size, f.goal.TLS
	}
	x := &s.Subjects[0]
	if f.subject == "" {
		f.subject = x.Models[0]
	}
	if !slices.Contains(x.Models, f.subject) {
		return nil, usagef("--subject is %q with --measure; expected one of %s", f.subject, scenario.JoinAsEnglishList(x.Models))
	}
	x.Models = []string{f.subject}
	if f.goal.TLS {
		x.Command = append(x.Command, "--tls-cert", "{cert}", "--tls-key", "{key}")
	}
	o := run.Options{Dir: f.out, Write: report.WriteJSONAndHTMLFiles, Evaluate: report.SetVerdicts, Progress: cmd.ErrOrStderr()}
	o.Scale = "small"
	if o.Dir == "" {
		o.Dir = "plan-" + time.Now().Format("20060102-150405")
	}
	set, err := run.RunScenarios(cmd.Context(), []scenario.Scenario{s}, o)
	if wrong, ok := errors.AsType[scenario.Error](err); ok {
		return nil, usageError{wrong}
	}
	if err == nil {
		if failed, _ := set.CountFailedRunsAndClaims(); failed > 0 {
			err = fmt.Errorf("%d of %d runs failed; the report in %s lists the causes", failed, set.CountRuns(), o.Dir)
		}
	}
	return set, err
}

// printAndCheckPredictionAccuracy prints the predicted and the measured figures. It returns an error if a prediction
// differs from the measured figure by more than --within.
func (f *planFlags) printAndCheckPredictionAccuracy(out io.Writer, all []capacity.Prediction) error {
	if len(all) == 0 {
		return usagef("%s does not contain two sizes of the same server; expected a report of `myriad bench capacity`", f.from)
	}
	if f.json {
		if err := json.NewEncoder(out).Encode(all); err != nil {
			return err
		}
	}
	off := 0
	for i := range all {
		p := &all[i]
		if !f.json {
			if err := p.WriteComparisonTable(out); err != nil {
				return err
			}
		}
		for _, c := range p.Figures {
			if !c.IsPart && f.within > 0 && math.Abs(c.RelativeError()) > f.within {
				off++
			}
		}
	}
	if off > 0 {
		return fmt.Errorf("%s off by more than %s", format.Plural(int64(off), "figure is", "figures are"), format.Percent(f.within))
	}
	return nil
}
