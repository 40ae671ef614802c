package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/lab"
)

func newOverload() *cobra.Command {
	var f benchFlags
	var o lab.OverloadOptions
	cmd := &cobra.Command{
		Use:   "overload",
		Short: "What becomes of a pool when more is asked of it than it can do?",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return overload(cmd, o, f) },
	}
	cmd.Long = overloadHelp()
	flags := cmd.Flags()
	flags.IntVar(&f.rounds, "rounds", 3, "how often each side is run under each load")
	flags.DurationVar(&f.duration, "duration", 0, "offer jobs for this long, a million a second for three times as long (default 10s)")
	flags.StringVar(&f.only, "only", "", "run only what matches this `REGEXP`, as SHAPE-LOAD/SIDE")
	flags.StringArrayVar(&f.subjects, "subject", nil,
		"compare this side too, as `NAME=COMMAND`; it gets the flags of \"myriad offer\" but for --pool, and prints what that prints (repeatable)")
	flags.StringVar(&f.out, "out", "bench-overload.json", "write every run to this `FILE`")
	flags.Int64Var(&o.Memory, "memory", 0, "allow each side as many `BYTES`; a watchdog ends it when it takes more (default 2 GiB)")
	flags.DurationVar(&o.Deadline, "deadline", 0, "a job is of use that has ended this long after its submission (default 200ms)")
	flags.DurationVar(&o.Warmup, "warmup", 0, "have each side under its load this long before anything is counted; less than 0 is not at all (default 2s)")
	flags.IntVar(&o.Queue, "queue", 0, "let `N` jobs wait in a side that has a queue (default 1024)")
	flags.StringVar(&o.Peers, "peers", "", "compare with ants, pond and failsafe, by this `FILE`: go build -C peers -o FILE .")
	flags.BoolVar(&o.Rules, "rules", false, "compare also with the own pool without single rules")
	flags.BoolVar(&o.Network, "network", false, "compare also servers, through the network")
	return cmd
}

func overloadHelp() string {
	takes := func(o lab.OverloadOptions) string {
		d, err := lab.OverloadTakes(o)
		if err != nil {
			return "an unknown time: " + err.Error()
		}
		return minutes(d)
	}
	return fmt.Sprintf(`What becomes of a pool when more is asked of it than it can do?

Each side is a process of its own that offers jobs to itself at fixed times,
whether it keeps up or not, with the same generator, jobs, deadline and memory:
goroutines without bounds (naive), a fixed pool at a channel, and the pool of
this repository (ours). First the capacity is measured; then a twentieth of it is
offered, all of it (1x), twice and ten times as much, and a million jobs a second.
A watchdog ends a side that takes more memory than it may; the report says so.

SHAPE is published (20 ms of waiting, 500 KB), cpu (1 ms of computing) or mixed,
and with --network network; LOAD is unloaded, 1x, 2x, 10x or 1M.

It takes about %s, unless flags say otherwise, with --peers about %s.`,
		takes(lab.OverloadOptions{}), takes(lab.OverloadOptions{Peers: "peers"}))
}

// overload runs the scenario and prints its report.
func overload(cmd *cobra.Command, o lab.OverloadOptions, f benchFlags) error {
	sides := f.subjects
	f.subjects = nil // which are servers
	options, err := f.options(cmd)
	if err != nil {
		return err
	}
	o.Options = options
	for _, text := range sides {
		side, err := lab.ParseOverloadSide(text)
		if err != nil {
			return usagef("--subject: %w", err)
		}
		o.Subjects = append(o.Subjects, side)
	}
	report, err := lab.Overload(cmd.Context(), o)
	if wrong, ok := errors.AsType[lab.ScenarioError](err); ok {
		return usageError{wrong}
	}
	if report == nil {
		return err
	}
	return printReport(cmd, report, f.out, len(report.Runs), err)
}
