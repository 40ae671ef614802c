package main

import (
	"strconv"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/lab"
)

// maxLoops is the most event loops that a server has.
const maxLoops = 1024

// newMillion is the built-in scenario million, with flags that change it.
func newMillion() *cobra.Command {
	s := builtIn("million")
	w := &s.Workloads[0]
	var names []string
	var loops int
	var cmd *cobra.Command
	cmd = newScenarioOf(s, func() (lab.Scenario, error) {
		if loops > maxLoops {
			return s, usagef("--loops is %d; expected 1 to %d", loops, maxLoops)
		}
		if !cmd.Flags().Changed("heartbeat") {
			w.Interval = min(w.Interval, w.Hold)
		}
		for i := range s.Subjects {
			if x := &s.Subjects[i]; loops > 0 {
				x.Command = append(x.Command, "--loops", strconv.Itoa(loops))
			}
		}
		return s.Keep(names...)
	})
	cmd.Long += `

It exits with 1 when a connection was lost, an answer was wrong, a heartbeat or
the broadcast did not arrive, the machine did not get its memory back, or one of
these was not measured; with --strict also when memory or rates are not what is
claimed.`
	cmd.SetFlagErrorFunc(valueError)
	flags := cmd.Flags()
	flags.StringSliceVar(&names, "subjects", nil, "run these servers: epoll, uring, prefork (default: all)")
	flag(flags, &w.Connections, parseMore, "connections", "n", "hold `N` connections, as 2m (default 1000000)")
	flag(flags, &w.Hold, parsePeriod, "hold", "", "hold them for this `TIME`, with heartbeats (default 2m)")
	flag(flags, &w.Interval, parsePeriod, "heartbeat", "", "have a heartbeat each `TIME` on each (default 1m, or the hold)")
	flag(flags, &loops, parseMore, "loops", "", "give the server, or each of its worker processes, `N` event loops (default: as many as it takes)")
	flag(flags, &w.Million.LoadLoops, parseMore, "load-loops", "", "give the generator `N` event loops (default: as many as it takes)")
	flag(flags, &w.Million.InFlight, parseMore, "check-inflight", "", "check `N` connections at a time (default 1000)")
	flag(flags, &w.Million.KeepFree, parseLong, "keep-free", "", "open no more connections when less than `BYTES` of memory are free, as 2g (default: the twentieth part of the memory, 1 GiB at least)")
	flags.BoolVar(&w.Million.Strict, "strict", false, "fail, too, when sizes or rates are not what is claimed")
	return cmd
}

// builtIn is a scenario that this program brings along.
func builtIn(name string) lab.Scenario {
	s, err := lab.BuiltIn(name)
	if err != nil {
		panic("myriad: " + err.Error())
	}
	return s
}
