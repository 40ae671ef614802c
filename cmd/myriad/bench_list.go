package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/lab"
)

func newBenchList() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the scenarios that there are, how long they take here, and what is optional",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return listScenarios(cmd, &f) },
	}
	f.addScale(cmd.Flags())
	return cmd
}

// listScenarios prints a line for each built-in scenario: its name, about how long it
// takes, and its question. Behind them is what is optional.
func listScenarios(cmd *cobra.Command, f *benchFlags) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	var optional []string
	out := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	for _, name := range lab.BuiltIns() {
		s, err := lab.BuiltIn(name)
		if err == nil {
			s, err = s.With(lab.Options{Scale: f.scale, Connections: f.connections})
		}
		if err != nil {
			return usageError{err}
		}
		fmt.Fprintf(out, "%s\t%s\t%s\n", name, minutes(s.Takes()), s.Question)
		if names := s.Optional(); len(names) > 0 {
			optional = append(optional, fmt.Sprintf("%s: %s", name, strings.Join(names, ", ")))
		}
	}
	if len(optional) > 0 {
		fmt.Fprintf(out, "\nLeft out unless --with asks for it:\n%s\n", strings.Join(optional, "\n"))
	}
	return out.Flush()
}

func newBenchShow() *cobra.Command {
	return &cobra.Command{
		Use:   "show SCENARIO",
		Short: "Print a scenario's file, to be copied and changed",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := lab.BuiltInFile(args[0])
			if err != nil {
				return usageError{err}
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
}
