package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/doctor"
)

// repair changes what the report says, and examines the machine again.
func (f *doctorFlags) repair(cmd *cobra.Command, r *doctor.Report) (*doctor.Report, error) {
	out, changes := cmd.OutOrStdout(), r.Changes()
	if len(changes) == 0 {
		fmt.Fprintln(out, "\nThere is nothing to change.")
		return r, nil
	}
	fmt.Fprintln(out, "\nThese are the changes:")
	for i, c := range changes {
		fmt.Fprintf(out, "  %d. %s\n", i+1, c.Command())
	}
	if !f.yes {
		yes, err := confirm(cmd.Context(), cmd.InOrStdin(), out, len(changes))
		if err != nil {
			return r, err
		}
		if !yes {
			fmt.Fprintln(out, "Nothing was changed.")
			return r, nil
		}
	}
	fmt.Fprintln(out, "\nChanged:")
	undo, failed := doctor.Apply(cmd.Context(), out, changes)
	if failed != nil {
		fmt.Fprintf(out, "\nNot done:\n  %s\n", strings.ReplaceAll(failed.Error(), "\n", "\n  "))
	}
	if len(undo) > 0 {
		fmt.Fprintln(out, "\nTo undo:")
	}
	for _, c := range undo {
		fmt.Fprintf(out, "  %s\n", c.Command())
	}
	after, err := examine(r.Plan)
	if err != nil {
		return r, err
	}
	fmt.Fprintf(out, "\n%s\n", after.Summary())
	return after, nil
}

// maxAnswer bounds what is read of an answer.
const maxAnswer = 64

// confirm asks whether to make n changes. It waits until there is an answer or
// ctx ends; then what waits for the answer ends with the process.
func confirm(ctx context.Context, in io.Reader, out io.Writer, n int) (bool, error) {
	changes := fmt.Sprintf("these %d changes", n)
	if n == 1 {
		changes = "this change"
	}
	fmt.Fprintf(out, "Apply %s? [y/N] ", changes)
	type answer struct {
		text string
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		text, err := bufio.NewReader(io.LimitReader(in, maxAnswer)).ReadString('\n')
		answers <- answer{strings.ToLower(strings.TrimSpace(text)), err}
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(out)
		return false, errors.New("interrupted; nothing was changed")
	case a := <-answers:
		if a.err != nil && a.text == "" {
			fmt.Fprintln(out)
			return false, usagef("--fix asks, and nobody answers (%w); expected y or n on standard input, or --yes", a.err)
		}
		return a.text == "y" || a.text == "yes", nil
	}
}
