package main

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/lab"
)

func newSoak() *cobra.Command {
	var o lab.SoakOptions
	cmd := &cobra.Command{
		Use:   "soak",
		Short: "Does a server stay sound under attack for long, on each I/O model?",
		Long: `Does a server stay sound under attack for long, on each I/O model?

Slow, silent, deaf, resetting and babbling clients attack all at once, and are
back when they are thrown out; honest clients among them check every answer. It
fails when one of those saw an error, when memory or descriptors have grown from
the first quarter of the time to the last, or when connections are left over.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return soak(cmd, o) },
	}
	flags := cmd.Flags()
	flags.DurationVar(&o.Duration, "duration", 0, "attack each model for this long (default 10m)")
	flags.DurationVar(&o.Every, "every", 0, "report as often (default 1m, or a quarter of the duration)")
	flags.StringArrayVar(&o.Models, "model", nil, "serve under this I/O `MODEL` (repeatable; default: each that can run here)")
	flags.IntVar(&o.Honest, "honest", 0, "have `N` honest clients (default 100)")
	return cmd
}

func soak(cmd *cobra.Command, o lab.SoakOptions) error {
	if len(o.Models) == 0 {
		o.Models = myriad.Models()
	}
	for _, m := range o.Models {
		if !slices.Contains(myriad.Models(), m) {
			return usagef("--model is %q; expected one of %s", m, strings.Join(myriad.Models(), ", "))
		}
	}
	o.Out = cmd.OutOrStdout()
	err := lab.Soak(cmd.Context(), o)
	if wrong, ok := errors.AsType[lab.ScenarioError](err); ok {
		return usageError{wrong}
	}
	return err
}
