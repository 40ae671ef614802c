package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/myriad-go/myriad/internal/version"
)

// Book is what a command has found: the report of each scenario that it ran, on one
// machine, one after the other. It is plain data; as JSON it is everything that the
// pages are made of. Durations are nanoseconds in JSON.
type Book struct {
	// Format is BookFormat.
	Format string `json:"format"`
	// Version is that of Myriad, as far as the executable knows it.
	Version string  `json:"version"`
	Machine Machine `json:"machine"`
	// Date is when the first run began, Took the time until the last one ended,
	// without that between an interruption and its resumption.
	Date time.Time     `json:"date"`
	Took time.Duration `json:"took"`
	// Command is the command line that made it.
	Command string `json:"command"`
	// Scale is the scale that was asked for, "" for the scenarios as they are written.
	Scale string `json:"scale,omitempty"`
	// Notes are sentences on what is missing or was different.
	Notes []string `json:"notes,omitempty"`
	// Reports are in the order of the runs.
	Reports []*Report `json:"reports"`
}

// BookFormat is what the JSON of a Book says that it is.
const BookFormat = "myriad-bench-1"

// WriteJSON writes the book as one indented JSON object.
func (b *Book) WriteJSON(w io.Writer) error { return writeJSON(w, b) }

// Failed counts the runs that failed.
func (b *Book) Failed() (n int) {
	for _, r := range b.Reports {
		n += r.Failed()
	}
	return n
}

// Runs counts the runs.
func (b *Book) Runs() (n int) {
	for _, r := range b.Reports {
		n += len(r.Runs)
	}
	return n
}

func (b *Book) note(format string, args ...any) {
	b.Notes = append(b.Notes, fmt.Sprintf(format, args...))
}

// RunAll runs scenarios one after the other, and reports what it saw. It takes as long as
// they do.
//
// A run that fails is part of its report, with its error, and the next one goes on. A run
// that something else on the machine disturbed is made again, as Options.Repeats says.
// When ctx ends, or the reports can't be written, the book so far is returned together
// with the error, in which errors.Is finds ctx.Err(); when nothing could be started, such
// as with a ScenarioError, the book is nil.
//
// With Options.Dir each run is written there as soon as it has ended, and at the end the
// reports: what was interrupted, however it was, is finished by Resume.
//
// RunAll starts processes of its own, a server and a load generator at a time, and has
// ended and waited for all of them when it returns. On Linux all of them end, and
// temporary files are removed, also when this process is killed: see Guard. There it
// raises this process's soft limit of open descriptors to the hard one and leaves it so,
// for its children to inherit. Scenarios that run at the same time disturb each other's
// figures, nothing else.
func RunAll(ctx context.Context, all []Scenario, o Options) (*Book, error) {
	b, err := newBook(all, o)
	if err != nil {
		return nil, err
	}
	s, err := newSession(b, o)
	if err != nil {
		return nil, err
	}
	if o.Dir == "" {
		return s.run(ctx, o, nil)
	}
	if err := checkDir(o.Dir); err != nil {
		return nil, err
	}
	return s.run(ctx, o, func() (err error) {
		s.journal, err = createJournal(o.Dir, headOf(b, o))
		return err
	})
}

// Run is RunAll for one scenario, of which it returns the report.
func Run(ctx context.Context, s Scenario, o Options) (*Report, error) {
	b, err := RunAll(ctx, []Scenario{s}, o)
	if b == nil {
		return nil, err
	}
	return b.Reports[0], err
}

// Resume finishes what RunAll has left unfinished in a directory: the runs that are
// missing are made, those that there are stay as they are, and the reports are written.
// When none is missing it says so on Progress, and writes the reports only. Of the options
// only Progress and Self count. It fails with a ScenarioError, and a nil book, where there
// is nothing that can be resumed; otherwise it returns as RunAll does.
func Resume(ctx context.Context, dir string, o Options) (*Book, error) {
	j, found, err := openJournal(dir)
	if err != nil {
		return nil, err
	}
	if o, err = found.head.options(dir, o); err != nil {
		return nil, errors.Join(err, j.close())
	}
	s, err := newSession(found.head.Book, o)
	if err != nil {
		return nil, errors.Join(err, j.close())
	}
	s.resume(found, j)
	if s.missing() == 0 {
		if o.Progress != nil {
			fmt.Fprintf(o.Progress, "nothing is left to do: all %d runs are in %s\n", s.total, dir)
		}
		return s.complete(o)
	}
	return s.run(ctx, o, s.tellResumed)
}

// newBook is a book without a run: the scenarios with the options applied.
func newBook(all []Scenario, o Options) (*Book, error) {
	if n := len(all); n < 1 || n > maxParts {
		return nil, wrong("%d scenarios; expected 1 to %d", n, maxParts)
	}
	b := &Book{
		Format: BookFormat, Version: version.Myriad(), Machine: thisMachine(), Date: time.Now().UTC(),
		Command: o.command(), Scale: o.Scale,
	}
	if err := o.checkWith(all); err != nil {
		return nil, err
	}
	var none error
	for _, s := range all {
		s, err := o.apply(s)
		if err != nil {
			return nil, err
		}
		steps, err := s.plan(o.Only)
		if err != nil { // of several scenarios Only may leave some out
			none = err
			continue
		}
		b.Reports = append(b.Reports, newReport(s, b, len(steps)))
	}
	if len(b.Reports) == 0 {
		return nil, none
	}
	return b, nil
}
