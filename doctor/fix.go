package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"
)

// changeTime bounds how long one change may take.
const changeTime = 10 * time.Second

// ChangeError says why a change was not made.
type ChangeError struct {
	Change Change
	Err    error
}

func (e *ChangeError) Error() string { return fmt.Sprintf("%s: %v", e.Change, e.Err) }
func (e *ChangeError) Unwrap() error { return e.Err }

// Apply makes the changes on this machine, in order, by running the Command of each
// with sh in the network namespace of the calling thread. It tells each that was made
// on out. What can't be made is passed over: err is an errors.Join of a *ChangeError
// for each. undo are the changes that take back what was made, in reverse order. When
// ctx ends no further change is begun.
//
// A limit of a process can't be changed from outside of the shell that starts the
// server: such a change is an error that says what to type there.
func Apply(ctx context.Context, out io.Writer, changes []Change) (undo []Change, err error) {
	var errs []error
	for _, c := range changes {
		if err := c.apply(ctx); err != nil {
			errs = append(errs, &ChangeError{c, err})
			continue
		}
		fmt.Fprintf(out, "  %s\n", c)
		undo = append([]Change{c.undo()}, undo...)
	}
	return undo, errors.Join(errs...)
}

func (c Change) apply(ctx context.Context) error {
	if c.ofShell() {
		return fmt.Errorf("type `%s` in the shell that starts the server, as root if that is refused", c.Command())
	}
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	said, err := exec.CommandContext(ctx, "sh", "-c", c.Command()).CombinedOutput()
	if err != nil {
		return fmt.Errorf("`%s`: %w: %s", c.Command(), err, strings.TrimSpace(string(said)))
	}
	return nil
}
