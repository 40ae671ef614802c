package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/lab"
)

func newMillion() *cobra.Command {
	var f benchFlags
	var o lab.MillionOptions
	cmd := &cobra.Command{
		Use:   "million",
		Short: "Does a server hold a million connections, and what do they take?",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return million(cmd, o, f) },
	}
	cmd.Long = millionHelp()
	cmd.SetFlagErrorFunc(loadFlagError)
	flags := cmd.Flags()
	flag(flags, &o.Connections, parseMore, "connections", "n", "hold `N` connections, as 2m (default 1000000)")
	flags.StringSliceVar(&o.Names, "subjects", nil, "run these servers: "+strings.Join(lab.MillionSubjects(), ", ")+" (default: all)")
	flags.StringVar(&f.only, "only", "", "run only what matches this `REGEXP`, as million/SUBJECT")
	flags.IntVar(&f.rounds, "rounds", 1, "how often each server is run")
	flag(flags, &o.Hold, parsePeriod, "hold", "", "hold them for this `TIME`, with heartbeats (default 2m)")
	flag(flags, &o.Heartbeat, parsePeriod, "heartbeat", "", "have a heartbeat each `TIME` on each (default 1m, or the hold)")
	flag(flags, &o.Loops, parseMore, "loops", "", "give the server, or each of its worker processes, `N` event loops (default: as many as it takes)")
	flag(flags, &o.LoadLoops, parseMore, "load-loops", "", "give the generator `N` event loops (default: as many as it takes)")
	flag(flags, &o.InFlight, parseMore, "check-inflight", "", "check `N` connections at a time (default 1000)")
	flag(flags, &o.KeepFree, parseLong, "keep-free", "", "open no more connections when less than `BYTES` of memory are free, as 2g (default: the twentieth part of the memory, 1 GiB at least)")
	flags.BoolVar(&o.Strict, "strict", false, "fail, too, when sizes or rates are not what is claimed")
	flags.StringVar(&f.out, "out", "bench-million.json", "write every run to this `FILE`")
	return cmd
}

func millionHelp() string {
	takes := "an unknown time"
	if d, err := lab.MillionTakes(lab.MillionOptions{}); err == nil {
		takes = minutes(d)
	}
	return fmt.Sprintf(`Does a server hold a million connections, and what do they take?

For each server, in a process of its own, another process opens the connections;
each sends a line of its own, and the same must come back; they are left alone,
get a broadcast and heartbeats, are checked again and closed. Connections and
heartbeats are counted by the server. epoll and uring are one process with a
descriptor table for each loop, prefork is worker processes.

Before memory runs out no more connections are opened; it goes on with those that
there are, and says where it stopped. Ctrl-C ends both processes and prints what
there is. It exits with 1 when a connection was lost, an answer was wrong, a
heartbeat or the broadcast did not arrive, the machine did not get its memory back,
or one of these was not measured; with --strict also when memory or rates are not
what is claimed.

It takes about %s, unless flags say otherwise.`, takes)
}

// million runs the scenario and prints its report.
func million(cmd *cobra.Command, o lab.MillionOptions, f benchFlags) error {
	options, err := f.options(cmd)
	if err != nil {
		return err
	}
	o.Options = options
	report, err := lab.Million(cmd.Context(), o)
	if wrong, ok := errors.AsType[lab.ScenarioError](err); ok {
		return usageError{wrong}
	}
	if report == nil {
		return err
	}
	return printReport(cmd, report, f.out, len(report.Runs), err)
}
