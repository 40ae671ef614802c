package lab

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/myriad-go/myriad/internal/procfs"
)

// session is the making of a book, or of the rest of one. It belongs to one goroutine.
//
// The steps of all reports are gone through in their order. The attempts of a step that
// the journal has are taken over; as long as it wants another, it is run, and the record
// is in the journal before the next begins. So a book that was interrupted any number of
// times has the same steps, in the same order, as one that was not.
type session struct {
	*runner
	book    *Book
	plans   [][]step // of each report
	total   int      // steps of all reports
	found   *foundJournal
	journal *journal // nil without a directory
	repeats repeater
	began   time.Time
}

// newSession plans a book. Nothing is started.
func newSession(b *Book, o Options) (*session, error) {
	s := &session{book: b, found: &foundJournal{}}
	most, err := o.repeats()
	if err != nil {
		return nil, err
	}
	s.repeats.most = most
	var all []step
	for _, r := range b.Reports {
		steps, err := r.Scenario.plan(o.Only)
		if err != nil {
			return nil, err
		}
		s.plans = append(s.plans, steps)
		for _, st := range steps {
			st.scenario = r.Scenario.Name
			all = append(all, st)
		}
	}
	s.total, s.repeats.planned = len(all), estimate(all)
	s.runner = &runner{progress: newProgress(o.Progress, all), room: readRoom, capture: capture{dir: o.Dir, trace: o.Trace, profile: o.Profile}}
	return s, s.checkCapture()
}

// repeats is how often a disturbed run is made again.
func (o *Options) repeats() (int, error) {
	switch {
	case o.Repeats == 0:
		return standardRepeats, nil
	case o.Repeats > MaxRepeats:
		return 0, wrong("%d repeats; expected up to %d, or a negative number for none", o.Repeats, MaxRepeats)
	}
	return max(o.Repeats, 0), nil
}

// run makes what is missing. open is called before the first step, when everything is
// there that is needed; it may be nil.
func (s *session) run(ctx context.Context, o Options, open func() error) (_ *Book, err error) {
	defer func() { err = errors.Join(err, s.end()) }()
	if err := s.begin(o); err != nil {
		return nil, err
	}
	if open != nil {
		if err := open(); err != nil {
			return nil, err
		}
	}
	if o.Dir != "" {
		s.progress.tell(true, "report in "+o.Dir)
	}
	s.began = time.Now()
	err = s.all(ctx)
	if err != nil && o.Dir != "" {
		s.book.note("Not finished: myriad bench --resume %s makes the rest.", o.Dir)
		err = fmt.Errorf("%w; myriad bench --resume %s finishes the rest", err, o.Dir)
	}
	s.book.Took = s.took()
	return s.book, errors.Join(err, s.write(o.Dir))
}

// complete writes the reports of a book of which nothing is missing.
func (s *session) complete(o Options) (*Book, error) {
	err := s.all(context.Background()) // takes over what there is
	s.book.Took = s.found.elapsed
	return s.book, errors.Join(err, s.write(o.Dir), s.end())
}

// write writes the reports, if there is a directory.
func (s *session) write(dir string) error {
	s.repeats.note(s.book)
	for _, r := range s.book.Reports {
		r.Verdicts = r.judged()
	}
	if dir == "" {
		return nil
	}
	return s.book.writeReports(dir)
}

// begin makes what the runs need.
func (s *session) begin(o Options) (err error) {
	s.pinning = choosePinning()
	if s.self, err = o.self(); err != nil {
		return err
	}
	var more []string
	if o.Dir != "" {
		dir, err := filepath.Abs(o.Dir)
		if err != nil {
			return err
		}
		more = append(more, filepath.Join(dir, unfinished))
	}
	guard, err := startGuard(s.self, more...)
	if err != nil {
		return err
	}
	s.launcher = newLauncher()
	s.launcher.guard = guard
	for _, r := range s.book.Reports {
		if r.Scenario.secured() && s.cert == nil {
			if s.cert, err = newCertificate(guard.dir); err != nil {
				return err
			}
		}
	}
	if err := raiseFileLimit(); err != nil {
		s.noteAll("The limit of open descriptors could not be raised: %v.", err)
	}
	s.facts = readFacts()
	_, err = procfs.ReadMachine()
	if s.sampled = err == nil; err != nil {
		s.noteAll("Figures of the server's processor time, memory and connections are missing: %v.", err)
	}
	return nil
}

// noteAll notes something in every report.
func (s *session) noteAll(format string, args ...any) {
	for _, r := range s.book.Reports {
		r.note(format, args...)
	}
}

// end ends what begin and run have started.
func (s *session) end() (err error) {
	if s.launcher != nil {
		s.launcher.close()
		err = s.launcher.guard.end()
	}
	if s.journal != nil {
		err = errors.Join(err, s.journal.close())
	}
	return err
}

// took is the time of this session and of those before it.
func (s *session) took() time.Duration { return s.found.elapsed + time.Since(s.began) }

// all goes through all steps, until ctx ends.
func (s *session) all(ctx context.Context) error {
	defer s.progress.end()
	n := 0
	for i := range s.book.Reports {
		for _, st := range s.plans[i] {
			if err := s.step(ctx, n, i, st); err != nil {
				return err
			}
			n++
		}
	}
	return nil
}

// step takes over or makes the attempts of step n of all, which belongs to a report.
func (s *session) step(ctx context.Context, n, report int, st step) error {
	r := s.book.Reports[report]
	first := len(r.Runs)
	attempts := func() []RunRecord { return r.Runs[first:] }
	defer func() {
		supersede(attempts())
		if len(r.Runs) > 0 {
			r.Date = r.Runs[0].Started.UTC()
		}
	}()
	r.Runs = append(r.Runs, s.found.runs[keyOf(report, st)]...)
	s.repeats.made(attempts(), 0)
	st.scenario = r.Scenario.Name
	for s.repeats.wants(attempts(), st.workload.estimate()) {
		made := len(attempts())
		st.attempt = made + 1
		if ctx.Err() != nil {
			return s.interrupted(ctx, n, r)
		}
		s.progress.show(n)
		s.scenario = &r.Scenario
		run := s.runner.run(ctx, st, r.Runs)
		if ctx.Err() != nil && run.Error != "" { // which is why it failed: that says nothing of the server
			if kinds[st.workload.Kind].partial {
				r.Runs = append(r.Runs, run)
			}
			return s.interrupted(ctx, n, r)
		}
		r.Runs = append(r.Runs, run)
		s.repeats.made(attempts(), made)
		if err := s.journal.add(entry{Report: report, Elapsed: s.took(), Run: &r.Runs[first+made]}); err != nil {
			return err
		}
	}
	return nil
}

// interrupted says that the book was not made to its end.
func (s *session) interrupted(ctx context.Context, n int, r *Report) error {
	r.note("Interrupted in run %d of %d.", n+1, s.total)
	return interruptedError{n + 1, s.total, ctx.Err()}
}

// interruptedError says in which run a book was interrupted. Why is what ended the context:
// it is for errors.Is, not for people.
type interruptedError struct {
	run, of int
	why     error
}

func (e interruptedError) Error() string {
	return fmt.Sprintf("interrupted in run %d of %d", e.run, e.of)
}

func (e interruptedError) Unwrap() error { return e.why }
