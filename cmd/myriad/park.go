package main

import (
	"encoding/json"
	"errors"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/lab"
)

// newPark is what "bench idle" starts to see what goroutines take.
func newPark() *cobra.Command {
	var n int
	cmd := &cobra.Command{
		Use:    "park",
		Short:  "Park goroutines and print, as JSON, this process's memory before and then",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return park(cmd, n) },
	}
	cmd.Flags().IntVarP(&n, "goroutines", "n", 10_000, "park `N` goroutines")
	return cmd
}

func park(cmd *cobra.Command, n int) error {
	samples, err := lab.Park(cmd.Context(), n)
	if wrong, ok := errors.AsType[lab.ScenarioError](err); ok {
		return usagef("-n is %w", wrong)
	}
	if err != nil {
		return err
	}
	out := json.NewEncoder(cmd.OutOrStdout())
	for i := range samples {
		if err := out.Encode(&samples[i]); err != nil {
			return err
		}
	}
	return nil
}
