package main

import (
	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/lab"
)

// newIdle is a scenario that goes up to a number of connections, and of goroutines.
func newIdle() *cobra.Command {
	connections, goroutines := lab.IdleConnections, lab.IdleGoroutines
	made := func() lab.Scenario { return lab.IdleCosts(myriad.Models(), connections, goroutines) }
	cmd := newScenarioOf(made(), made)
	flags := cmd.Flags()
	flags.IntVar(&connections, "to", connections, "hold up to `N` connections, in steps; what the machine has no room for is left out, with the reason")
	flags.IntVar(&goroutines, "goroutines", goroutines, "park up to `N` goroutines, in steps")
	return cmd
}
