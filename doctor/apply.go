package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// maxChanges bounds what Apply makes at once.
const maxChanges = 1024

// ChangeError says why a change was not made, or not as it was asked for.
type ChangeError struct {
	Change Change
	Err    error
}

func (e *ChangeError) Error() string { return fmt.Sprintf("%s: %v", e.Change.title(), e.Err) }
func (e *ChangeError) Unwrap() error { return e.Err }

// Apply makes the changes on this machine, in order, at most 1024. It reads each
// setting before, and never lowers one that is an amount, such as a buffer or a
// limit, nor takes from a list of ports, unless the change itself does so, as an undo
// does. Then, and for settings that are choices, the setting must still be what
// Change.From says, unless that is empty. Afterwards it reads the setting again: where
// the kernel has rounded an amount up, that is as good.
//
// A limit of a process is changed for the process that started this one, such as
// a shell, so that what it starts from then on has it, and for this one: undo has that
// process in its Name.
//
// What can't be made is passed over: err is an errors.Join of a *ChangeError for
// each. undo are the changes which take back what was made, in reverse order,
// From what a setting is now To what it was. When ctx ends, no further change is
// begun. Two calls at a time that change the same settings are not safe.
func Apply(ctx context.Context, changes []Change) (undo []Change, err error) {
	if len(changes) > maxChanges {
		return nil, fmt.Errorf("doctor: %d changes; expected at most %d", len(changes), maxChanges)
	}
	var errs []error
	for _, c := range changes {
		if err := ctx.Err(); err != nil {
			errs = append(errs, &ChangeError{c, fmt.Errorf("%w: neither this nor what follows it was changed", err)})
			break
		}
		made, err := c.apply()
		if made != nil {
			undo = append(undo, *made)
		}
		if err != nil {
			errs = append(errs, &ChangeError{c, err})
		}
	}
	slices.Reverse(undo)
	return undo, errors.Join(errs...)
}

// place is where a setting is: read gives its value, write changes it.
type place interface {
	read() (string, error)
	write(value string) error
}

// apply makes a change. made takes back what was made, nil if nothing was.
func (c Change) apply() (made *Change, err error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	at, err := c.place()
	if err != nil {
		return nil, err
	}
	present, err := at.read()
	if err != nil {
		return nil, err
	}
	present = c.normal(present)
	to, err := c.target(present)
	if err != nil || to == present {
		return nil, err
	}
	return c.write(at, present, to)
}

// write writes, and tells what the setting is then, also where it fails half way.
func (c Change) write(at place, present, to string) (made *Change, err error) {
	failed := at.write(to)
	now, err := at.read()
	switch {
	case err != nil && failed != nil:
		return nil, failed
	case err != nil:
		return c.made(at, present, to), fmt.Errorf("it was changed, but can't be read again: %w", err)
	}
	if now = c.normal(now); now != present {
		made = c.made(at, present, now)
	}
	switch {
	case failed != nil:
		return made, failed
	case now != to && (!c.adds() || c.widest(now, to) != now):
		return made, fmt.Errorf("it was to be %s, and the kernel made it %s", to, orNone(now))
	}
	return made, nil
}

// made is the change that takes back what was made.
func (c Change) made(at place, present, now string) *Change {
	name := c.Name
	if whose, ok := at.(fmt.Stringer); ok {
		name = whose.String()
	}
	return &Change{c.Kind, name, now, present}
}

// place is where the change's setting is.
func (c Change) place() (place, error) {
	switch c.Kind {
	case Nofile, Memlock:
		return limitPlace(c)
	case Link:
		return link(c.Name), nil
	case Address:
		return addressPlace(c)
	case Cgroup:
		return file(c.Name), nil
	}
	return file(sysctlPath(c.Name)), nil
}
