package main

import (
	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/lab"
)

// newSoak is the built-in scenario soak, with flags that change it.
func newSoak() *cobra.Command {
	s := builtIn("soak")
	w := &s.Workloads[0]
	var models []string
	cmd := newScenarioOf(s, func() (lab.Scenario, error) { return s.Keep(models...) })
	flags := cmd.Flags()
	flags.DurationVar(&w.Soak.Every, "every", w.Soak.Every, "report as often (default 1m, or a quarter of the duration)")
	flags.StringArrayVar(&models, "model", nil, "serve under this I/O `MODEL` (repeatable; default: each that can run here)")
	flags.IntVar(&w.Soak.Honest, "honest", w.Soak.Honest, "have `N` honest clients")
	return cmd
}
