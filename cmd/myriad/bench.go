package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/myriad-go/myriad/lab"
)

func newBench() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "bench SCENARIO|FILE.toml|all ...",
		Short: "Compare servers side by side under the same load",
		Long: `Compare servers side by side under the same load.

"myriad bench list" says what there is, and how long it takes; "all" is all of
it. A scenario of your own is a file: "myriad bench show quick > mine.toml" gives
one to begin with, and docs/scenarios.md says what can stand in it.

Server and load generator are processes of their own, pinned to CPUs of their
own where there are at least two and the workload does not say otherwise. The
subjects are run in turn, in rounds. What this machine cannot run is listed with
the reason. Ctrl-C ends it; --resume goes on.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, names []string) error { return bench(cmd, names, &f) },
	}
	f.add(cmd.Flags())
	cmd.AddCommand(newBenchList(), newBenchShow(), newMillion(), newSoak(), newOverload())
	return cmd
}

// bench runs scenarios and prints their reports.
func bench(cmd *cobra.Command, names []string, f *benchFlags) error {
	if f.resume != "" {
		return resume(cmd, names, f)
	}
	if len(names) == 0 {
		return usagef("no scenario given; expected one of %s, %s, or a file such as mine.toml", strings.Join(lab.BuiltIns(), ", "), all)
	}
	chosen, err := scenariosOf(names)
	if err != nil {
		return err
	}
	return benchOf(cmd, chosen, f)
}

// benchOf runs these scenarios and prints their reports.
func benchOf(cmd *cobra.Command, chosen []lab.Scenario, f *benchFlags) error {
	if isJSON(f.out) {
		return usagef("--out is %q; expected a directory: report.json in it has every run", f.out)
	}
	o, err := f.options(cmd, chosen...)
	if err != nil {
		return err
	}
	var names []string
	for _, s := range chosen {
		names = append(names, s.Name)
	}
	o.Dir = f.directory(names)
	book, err := lab.RunAll(cmd.Context(), chosen, o)
	return printBook(cmd, book, o.Dir, err)
}

// resume finishes what an earlier command has begun.
func resume(cmd *cobra.Command, names []string, f *benchFlags) error {
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		if flag.Name != "resume" {
			names = append(names, "--"+flag.Name)
		}
	})
	if len(names) > 0 {
		return usagef("--resume with %s; expected it alone: the directory says what is to be run", strings.Join(names, ", "))
	}
	o, err := f.options(cmd)
	if err != nil {
		return err
	}
	book, err := lab.Resume(cmd.Context(), f.resume, o)
	return printBook(cmd, book, f.resume, err)
}

// printBook prints what was found, and says where it is. It returns err, or an error
// when runs have failed.
func printBook(cmd *cobra.Command, book *lab.Book, dir string, err error) error {
	if wrong, ok := errors.AsType[lab.ScenarioError](err); ok {
		return usageError{wrong}
	}
	if book == nil || len(book.Reports) == 0 {
		return err
	}
	for i, report := range book.Reports {
		if i > 0 {
			fmt.Fprintln(cmd.OutOrStdout())
		}
		err = errors.Join(err, report.WriteText(cmd.OutOrStdout()))
	}
	fmt.Fprintf(cmd.OutOrStdout(), "\nreport in %s\n", dir)
	if failed := book.Failed(); err == nil && failed > 0 {
		return fmt.Errorf("%d of %d runs failed", failed, book.Runs())
	}
	return err
}

// newScenarioOf is a built-in scenario with flags of its own: made is what these make of it.
func newScenarioOf(s lab.Scenario, made func() (lab.Scenario, error)) *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   s.Name,
		Short: s.Question,
		Long:  s.Question + "\n" + s.About + "\n\nIt takes about " + minutes(s.Takes()) + ", unless flags say otherwise.",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, more []string) error {
			if f.resume != "" {
				return resume(cmd, more, &f)
			}
			s, err := made()
			if wrong, ok := errors.AsType[lab.ScenarioError](err); ok {
				return usageError{wrong}
			} else if err != nil {
				return err
			}
			chosen, err := scenariosOf(more, s)
			if err != nil {
				return err
			}
			return benchOf(cmd, chosen, &f)
		},
	}
	f.add(cmd.Flags())
	return cmd
}
