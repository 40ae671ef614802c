package doctor

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// WriteCommands lists changes as the command lines that make them, numbered.
func WriteCommands(w io.Writer, changes []Change) error {
	var out strings.Builder
	for i, c := range changes {
		fmt.Fprintf(&out, "  %d. %s\n", i+1, c.Command())
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// WriteApplied tells what Apply has returned: what was changed, what was not and
// why, and the command lines that take back what was.
func WriteApplied(w io.Writer, undo []Change, failed error) error {
	var out strings.Builder
	list := func(title string, lines []string) {
		if len(lines) > 0 {
			fmt.Fprintf(&out, "\n%s:\n  %s\n", title, strings.Join(lines, "\n  "))
		}
	}
	var made, not, back []string
	for _, c := range undo {
		made = append(made, Change{c.Kind, c.Name, c.To, c.From}.String())
		back = append(back, c.Command())
	}
	slices.Reverse(made)
	for _, err := range joined(failed) {
		not = append(not, err.Error())
	}
	list("Changed", made)
	list("Not done", not)
	list("To undo", back)
	_, err := io.WriteString(w, out.String())
	return err
}

// joined are the errors that errors.Join has joined.
func joined(err error) []error {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		return all.Unwrap()
	}
	if err != nil {
		return []error{err}
	}
	return nil
}
