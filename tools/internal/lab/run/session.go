package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
	"github.com/myriad-go/myriad/tools/internal/procfs"
	"github.com/myriad-go/myriad/tools/internal/version"
)

// Options say how to run scenarios. The zero value runs them as they are written.
type Options struct {
	scenario.Options
	// Dir is the directory of the report: it gets the journal, and what Write writes. "" is
	// none. It is made; one that exists has to be empty.
	Dir string
	// Write writes the reports to Dir when the runs have ended, and Judge works out what
	// follows from them. Both may be nil.
	Write func(dir string, s *result.Set) error
	Judge func(s *result.Set)
	// Strict has claims that are strict fail the bench, too.
	Strict bool
	// Progress gets a line with where the report will be, as soon as the runs begin, and how far
	// they are: a line that is rewritten when it is a terminal, otherwise a line for each
	// workload. Nil is no progress.
	Progress io.Writer
	// Self is the executable that has the subcommands load and hold, and that "{self}" in a
	// subject's command stands for; "" is the running one.
	Self string
	// Command is what the report shows as the command that made it; "" is the running
	// process's own command line.
	Command string
}

// All runs scenarios one after the other. It takes as long as they do.
//
// A run that fails is part of its report, with its error, and the next one goes on. When ctx
// ends, or the reports can't be written, the set so far is returned together with the error,
// in which errors.Is finds ctx.Err(); when nothing could be started, such as with a
// scenario.Error, the set is nil. What was interrupted, however it was, is finished by Resume.
//
// All starts processes of its own, a server and a load generator at a time, and has ended and
// waited for all of them when it returns. On Linux those that it has started end also when
// this process is killed. There it raises this process's soft limit of open descriptors to the
// hard one and leaves it so, for its children to inherit.
func All(ctx context.Context, all []scenario.Scenario, o Options) (*result.Set, error) {
	set, err := plan(all, o)
	if err != nil {
		return nil, err
	}
	s, err := newSession(set, o)
	if err != nil {
		return nil, err
	}
	if o.Dir != "" {
		h := head{Set: set}
		if o.Only != nil {
			h.Only = o.Only.String()
		}
		if s.journal, err = createJournal(o.Dir, h); err != nil {
			return nil, err
		}
	}
	return s.run(ctx)
}

// Resume finishes what All has left unfinished in a directory: the runs that are missing are
// made, those that there are stay as they are, and the reports are written. When none is
// missing it says so on Progress, and writes the reports only. Of the options only Progress,
// Self, Write and Judge count.
func Resume(ctx context.Context, dir string, o Options) (*result.Set, error) {
	j, seen, err := openJournal(dir)
	if err != nil {
		return nil, err
	}
	o.Dir = dir
	var s *session
	if o.Only, err = seen.head.only(dir); err == nil {
		s, err = newSession(seen.head.Set, o)
	}
	if err != nil {
		return nil, errors.Join(err, j.close())
	}
	s.found, s.journal = seen, j
	s.set.Notes = append(s.set.Notes, seen.notes...)
	if s.missing() > 0 {
		if err := s.noteResumed(); err != nil {
			return nil, errors.Join(err, j.close())
		}
	} else if o.Progress != nil {
		fmt.Fprintf(o.Progress, "nothing is left to do: all %d runs are in %s\n", len(s.steps), dir)
	}
	return s.run(ctx)
}

// plan is a set without a run: the scenarios with the options applied.
func plan(all []scenario.Scenario, o Options) (*result.Set, error) {
	if n := len(all); n < 1 || n > scenario.MaxParts {
		return nil, scenario.Errorf("%d scenarios; expected 1 to %d", n, scenario.MaxParts)
	}
	command := o.Command
	if command == "" {
		command = strings.Join(os.Args, " ")
	}
	set := &result.Set{
		Format: result.Format, Version: version.Myriad(), Machine: result.ThisMachine(), Date: time.Now().UTC(),
		Command: command, Scale: o.Scale, Strict: o.Strict,
	}
	pinned := choosePinning()
	var none error
	for _, s := range all {
		s, err := o.Apply(s)
		if err != nil {
			return nil, err
		}
		steps, err := s.Plan(o.Only)
		if err != nil { // of several scenarios Only may leave some out
			none = err
			continue
		}
		set.Reports = append(set.Reports, &result.Report{
			Scenario: s, Pinning: pinned, Notes: s.Notes, Planned: len(steps), Runs: []result.Run{},
		})
	}
	if len(set.Reports) == 0 {
		return nil, none
	}
	return set, nil
}

// session is the making of a set, or of the rest of one. It belongs to one goroutine.
//
// The steps of all reports are gone through in their order. What the journal has of a step is
// taken over; any other step is run, and its record is in the journal before the next begins.
// So a set that was interrupted any number of times has the same steps, in the same order, as
// one that was not.
type session struct {
	runner
	options Options
	set     *result.Set
	steps   []scenario.Step // of all reports
	report  []int           // that each step belongs to
	found   *found
	journal *journal // nil without a directory
	began   time.Time
}

// newSession plans a set. Nothing is started.
func newSession(set *result.Set, o Options) (*session, error) {
	s := &session{set: set, options: o, found: &found{}, began: time.Now()}
	for i, r := range set.Reports {
		steps, err := r.Scenario.Plan(o.Only)
		if err != nil {
			return nil, err
		}
		s.steps = append(s.steps, steps...)
		s.report = append(s.report, slices.Repeat([]int{i}, len(steps))...)
	}
	s.progress = newProgress(o.Progress, s.steps)
	return s, nil
}

// run makes what is missing, and writes the reports.
func (s *session) run(ctx context.Context) (_ *result.Set, err error) {
	defer func() { err = errors.Join(err, s.journal.close()) }()
	dir := s.options.Dir
	if s.missing() > 0 {
		end, err := s.begin()
		if err != nil {
			return nil, errors.Join(err, end())
		}
		defer func() { err = errors.Join(err, end()) }()
		if dir != "" {
			s.progress.tell(true, "report in "+dir)
		}
	}
	err = s.all(ctx)
	if err != nil && dir != "" {
		s.set.Note("Not finished: myriad bench --resume %s makes the rest.", dir)
		err = fmt.Errorf("%w; myriad bench --resume %s finishes the rest", err, dir)
	}
	s.set.Took = s.took()
	if s.options.Judge != nil {
		s.options.Judge(s.set)
	}
	if dir != "" && s.options.Write != nil {
		err = errors.Join(err, s.options.Write(dir, s.set))
	}
	return s.set, err
}

// begin makes what the runs need. end, which is never nil, takes it back.
func (s *session) begin() (end func() error, err error) {
	s.launcher = newLauncher()
	tmp := ""
	end = func() error {
		s.launcher.close()
		if tmp == "" {
			return nil
		}
		return os.RemoveAll(tmp)
	}
	s.pinning = choosePinning()
	if s.self = s.options.Self; s.self == "" {
		if s.self, err = os.Executable(); err != nil {
			return end, err
		}
	}
	if err := raiseFileLimit(); err != nil {
		s.noteAll("The limit of open descriptors could not be raised: %v.", err)
	}
	_, err = procfs.ReadMachine()
	if s.sampled = err == nil; err != nil {
		s.noteAll("Figures of the server's processor time, memory and connections are missing: %v.", err)
	}
	if !slices.ContainsFunc(s.steps, func(st scenario.Step) bool { return st.Workload.TLS }) {
		return end, nil
	}
	// Below the report's directory: what kills this process leaves nothing elsewhere.
	if tmp, err = os.MkdirTemp(s.options.Dir, ".certificate-*"); err == nil {
		s.cert, err = newCertificate(tmp)
	}
	return end, err
}

// noteAll notes something in every report.
func (s *session) noteAll(text string, args ...any) {
	for _, r := range s.set.Reports {
		r.Note(text, args...)
	}
}

// took is the time of this session and of those before it.
func (s *session) took() time.Duration {
	if s.missing() == 0 {
		return s.found.elapsed
	}
	return s.found.elapsed + time.Since(s.began)
}

// all goes through all steps, until ctx ends.
func (s *session) all(ctx context.Context) error {
	defer s.progress.end()
	for i, st := range s.steps {
		r := s.set.Reports[s.report[i]]
		if before, ok := s.found.runs[s.key(i)]; ok {
			r.Runs = append(r.Runs, before)
			continue
		}
		if ctx.Err() != nil {
			return s.interrupted(ctx, i)
		}
		s.progress.begin(i)
		run := s.runner.run(ctx, st, &r.Scenario, r.Runs)
		if ctx.Err() != nil && run.Error != "" { // which is why it failed: that says nothing of the server
			if len(run.Phases) > 0 || st.Workload.Phase(scenario.Broadcast) != nil {
				run.Error, run.Skipped = "", "interrupted"
				r.Runs = append(r.Runs, run) // for what it had seen; the journal does not have it
			}
			return s.interrupted(ctx, i)
		}
		r.Runs = append(r.Runs, run)
		if err := s.journal.write(entry{Report: s.report[i], Elapsed: s.took(), Run: &run}); err != nil {
			return err
		}
	}
	return nil
}

// key is that of a step in the journal.
func (s *session) key(i int) stepKey {
	st := &s.steps[i]
	return stepKey{s.report[i], st.Workload.Name, st.Subject.Name, st.Round}
}

// missing is how many runs the journal did not have.
func (s *session) missing() (n int) {
	for i := range s.steps {
		if _, ok := s.found.runs[s.key(i)]; !ok {
			n++
		}
	}
	return n
}

// noteResumed notes in the set and in the journal that it was resumed, and what has changed
// meanwhile.
func (s *session) noteResumed() error {
	before := len(s.set.Notes)
	now, pinned := result.ThisMachine(), choosePinning()
	s.set.Note("Interrupted, and resumed on %s after %d of %d steps.", time.Now().UTC().Format(time.DateTime+" MST"), len(s.found.runs), len(s.steps))
	if now != s.set.Machine {
		s.set.Note("Resumed on another machine, %s: its runs and those before can't be compared.", now)
	}
	if r := s.set.Reports[0]; r.Pinning.String() != pinned.String() {
		s.set.Note("Resumed with another pinning, %s: its runs and those before can't be compared.", pinned)
	}
	if v := version.Myriad(); v != s.set.Version {
		s.set.Note("Resumed by another version of Myriad, %q.", v)
	}
	for _, note := range s.set.Notes[before:] {
		if err := s.journal.write(entry{Note: note, Elapsed: s.found.elapsed}); err != nil {
			return err
		}
	}
	return nil
}

// interrupted says that the set was not made to its end.
func (s *session) interrupted(ctx context.Context, step int) error {
	s.set.Reports[s.report[step]].Note("Interrupted in run %d of %d.", step+1, len(s.steps))
	return interruptedError{step + 1, len(s.steps), ctx.Err()}
}

// interruptedError says in which run a set was interrupted. why is what ended the context: it
// is for errors.Is, not for people.
type interruptedError struct {
	run, of int
	why     error
}

func (e interruptedError) Error() string {
	return fmt.Sprintf("interrupted in run %d of %d", e.run, e.of)
}

func (e interruptedError) Unwrap() error { return e.why }
