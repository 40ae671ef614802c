package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/internal/offer"
)

// newOffer is one side of a comparison of pools under overload, which "bench
// overload" starts as a process.
func newOffer() *cobra.Command {
	var plan offer.Plan
	cmd := &cobra.Command{
		Use:    "offer",
		Short:  "Offer jobs to a pool in an open loop, and count what becomes of them",
		Args:   cobra.NoArgs,
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := offer.Run(cmd.Context(), plan, offer.Own(), cmd.OutOrStdout())
			if wrong, ok := errors.AsType[offer.PlanError](err); ok {
				return usageError{wrong}
			}
			return err
		},
	}
	plan.AddFlags(cmd.Flags(), offer.Own())
	return cmd
}
