package main

import (
	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/lab"
)

// newOverload is the built-in scenario overload, with flags that change it.
func newOverload() *cobra.Command {
	var c lab.OverloadChanges
	s := builtIn("overload")
	cmd := newScenarioOf(s, func() (lab.Scenario, error) { return c.Apply(s) })
	cmd.Long += `

Workloads are SHAPE-LOAD, for --only as SHAPE-LOAD/SIDE: SHAPE is published (20 ms
of waiting, 500 KB), cpu (1 ms of computing) or mixed, and with --with network
network, where sides are servers; LOAD is unloaded, 1x, 2x, 10x or 1M. --with ours
compares also with the own pool without single rules. With --peers or --with it
takes longer. A --subject is a side: it gets the flags of "myriad offer" but for
--pool, and prints what that prints.`
	flags := cmd.Flags()
	flags.Int64Var(&c.Memory, "memory", 0, "allow each side as many `BYTES`; a watchdog ends it when it takes more (default 2 GiB)")
	flags.DurationVar(&c.Deadline, "deadline", 0, "a job is of use that has ended this long after its submission (default 200ms)")
	flags.DurationVar(&c.WarmUp, "warmup", 0, "have each side under its load this long before anything is counted; less than 0 is not at all (default 2s)")
	flags.IntVar(&c.Queue, "queue", 0, "let `N` jobs wait in a side that has a queue (default 1024)")
	flags.StringVar(&c.Peers, "peers", "", "compare with ants, pond and failsafe, by this `FILE`: go build -C peers -o FILE .")
	return cmd
}
