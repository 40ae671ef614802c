package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/lab"
)

// newBenchGuard is what "bench" starts to clean up after it, however it ends.
func newBenchGuard() *cobra.Command {
	return &cobra.Command{
		Use:    "bench-guard",
		Short:  "Wait for the end of standard input, then end what a bench has left behind",
		Args:   cobra.NoArgs,
		Hidden: true,
		RunE: func(*cobra.Command, []string) error {
			err := lab.Guard(os.Stdin)
			if wrong, ok := errors.AsType[lab.ScenarioError](err); ok {
				return usageError{wrong}
			}
			return err
		},
	}
}
