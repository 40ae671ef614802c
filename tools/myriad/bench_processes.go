package main

import (
	"encoding/json"
	"errors"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/tools/internal/baseline"
	"github.com/myriad-go/myriad/tools/internal/jobload"
	"github.com/myriad-go/myriad/tools/internal/lab/run"
)

// newPoolLoadCommand returns the command "offer", which the scenario "overload" runs.
func newPoolLoadCommand() *cobra.Command {
	var plan jobload.Plan
	cmd := &cobra.Command{
		Use:   "offer",
		Short: "Submit jobs to a pool, in an open loop with --rate, and count the outcomes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := jobload.Run(cmd.Context(), plan, jobload.BuiltInContenders(), cmd.OutOrStdout())
			if wrong, ok := errors.AsType[jobload.PlanError](err); ok {
				return usageError{wrong}
			}
			return err
		},
	}
	plan.AddFlags(cmd.Flags(), jobload.BuiltInContenders())
	return cmd
}

// newParkGoroutinesCommand returns the command "park", which the scenario "idle" runs.
func newParkGoroutinesCommand() *cobra.Command {
	var n int
	cmd := &cobra.Command{
		Use:   "park",
		Short: "Park goroutines and print this process's memory before and after as JSON",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if n < 1 || n > baseline.MaxParked {
				return usagef("-n is %d; expected 1 to %d", n, baseline.MaxParked)
			}
			out := json.NewEncoder(cmd.OutOrStdout())
			return baseline.ParkGoroutines(cmd.Context(), n, func(checkpoint string) error { return out.Encode(run.SampleOwnMemory(checkpoint)) })
		},
	}
	cmd.Flags().IntVarP(&n, "goroutines", "n", 10_000, "park `N` goroutines")
	return cmd
}
