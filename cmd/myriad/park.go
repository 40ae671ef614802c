package main

import (
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/internal/baseline"
	"github.com/myriad-go/myriad/internal/lab/run"
)

// newPark is what "bench idle" starts to see what goroutines take.
func newPark() *cobra.Command {
	var n int
	cmd := &cobra.Command{
		Use:    "park",
		Short:  "Park goroutines and print, as JSON, this process's memory before and then",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if n < 1 || n > baseline.MaxParked {
				return usagef("-n is %d; expected 1 to %d", n, baseline.MaxParked)
			}
			out := json.NewEncoder(cmd.OutOrStdout())
			return baseline.Park(cmd.Context(), n, func(checkpoint string) error { return out.Encode(run.Self(checkpoint)) })
		},
	}
	cmd.Flags().IntVarP(&n, "goroutines", "n", 10_000, "park `N` goroutines")
	return cmd
}
