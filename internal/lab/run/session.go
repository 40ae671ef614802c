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

	"github.com/myriad-go/myriad/internal/lab/probe"
	"github.com/myriad-go/myriad/internal/lab/result"
	"github.com/myriad-go/myriad/internal/lab/scenario"
	"github.com/myriad-go/myriad/internal/procfs"
	"github.com/myriad-go/myriad/internal/version"
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
	// Repeats is how often a run is repeated that something else on the machine has
	// disturbed, up to MaxRepeats; negative is never. Default 2. Runs whose figures are of
	// memory are marked, but never repeated.
	Repeats int
	// Strict has claims that are strict fail the bench, too.
	Strict bool
	// Progress is told where the report will be, as soon as the runs begin, and how far
	// they are: a line that is rewritten when it is a terminal, otherwise a line for each
	// workload. Nil is told nothing.
	Progress io.Writer
	// Self is the executable that has the subcommands load and hold, and that "{self}" in a
	// subject's command stands for; "" is the running one.
	Self string
	// Command is what the report shows as the command that made it; "" is the running
	// process's own command line.
	Command string
}

// MaxRepeats is the most that Options.Repeats may be.
const MaxRepeats = 10

const (
	standardRepeats = 2
	// repeatShare is the part of the planned time that all repeats together may take: a
	// machine that is never quiet is not waited for.
	repeatShare = 4
)

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
	if o.Dir == "" {
		return s.run(ctx, nil)
	}
	if err := checkDir(o.Dir); err != nil {
		return nil, err
	}
	return s.run(ctx, func() (err error) {
		h := head{Set: set, Repeats: o.Repeats}
		if o.Only != nil {
			h.Only = o.Only.String()
		}
		s.journal, err = createJournal(o.Dir, h)
		return err
	})
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
	if o, err = seen.head.options(dir, o); err != nil {
		return nil, errors.Join(err, j.close())
	}
	s, err := newSession(seen.head.Set, o)
	if err != nil {
		return nil, errors.Join(err, j.close())
	}
	s.found, s.journal = seen, j
	s.set.Notes = append(s.set.Notes, seen.notes...)
	if s.missing() == 0 {
		if o.Progress != nil {
			fmt.Fprintf(o.Progress, "nothing is left to do: all %d runs are in %s\n", s.total, dir)
		}
		s.repeats = 0
		err := s.all(context.Background()) // takes over what there is
		s.set.Took = seen.elapsed
		return s.set, errors.Join(err, s.write(), s.end())
	}
	return s.run(ctx, s.noteResumed)
}

// plan is a set without a run: the scenarios with the options applied.
func plan(all []scenario.Scenario, o Options) (*result.Set, error) {
	if n := len(all); n < 1 || n > scenario.MaxParts {
		return nil, scenario.Errorf("%d scenarios; expected 1 to %d", n, scenario.MaxParts)
	}
	if err := o.CheckWith(all); err != nil {
		return nil, err
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
			Scenario: s, Machine: set.Machine, Pinning: pinned.Pinning, Date: set.Date,
			Command: command, Notes: s.Notes, Planned: len(steps), Runs: []result.Run{},
		})
	}
	if len(set.Reports) == 0 {
		return nil, none
	}
	return set, nil
}

// session is the making of a set, or of the rest of one. It belongs to one goroutine.
//
// The steps of all reports are gone through in their order. The attempts of a step that the
// journal has are taken over; as long as it wants another, it is run, and the record is in the
// journal before the next begins. So a set that was interrupted any number of times has the
// same steps, in the same order, as one that was not.
type session struct {
	runner
	options Options
	set     *result.Set
	plans   [][]scenario.Step // of each report
	total   int               // steps of all reports
	found   *found
	journal *journal // nil without a directory
	tmp     string   // a directory for certificates, "" where there are none
	began   time.Time

	repeats int           // attempts of a step beside the first
	planned time.Duration // of all steps
	spent   time.Duration // by repeats
	refused int           // steps that were not repeated for want of time
}

// newSession plans a set. Nothing is started.
func newSession(set *result.Set, o Options) (*session, error) {
	s := &session{set: set, options: o, found: &found{}, repeats: o.Repeats}
	switch {
	case o.Repeats == 0:
		s.repeats = standardRepeats
	case o.Repeats > MaxRepeats:
		return nil, scenario.Errorf("%d repeats; expected up to %d, or a negative number for none", o.Repeats, MaxRepeats)
	}
	var all []scenario.Step
	for _, r := range set.Reports {
		steps, err := r.Scenario.Plan(o.Only)
		if err != nil {
			return nil, err
		}
		s.plans = append(s.plans, steps)
		all = append(all, steps...)
	}
	s.total, s.planned = len(all), estimate(all)
	s.progress = newProgress(o.Progress, all)
	return s, nil
}

// run makes what is missing. open is called before the first step, when everything is there
// that is needed; it may be nil.
func (s *session) run(ctx context.Context, open func() error) (_ *result.Set, err error) {
	defer func() { err = errors.Join(err, s.end()) }()
	if err := s.begin(); err != nil {
		return nil, err
	}
	if open != nil {
		if err := open(); err != nil {
			return nil, err
		}
	}
	if err := s.makeCertificate(); err != nil {
		return nil, err
	}
	dir := s.options.Dir
	if dir != "" {
		s.progress.tell(true, "report in "+dir)
	}
	s.began = time.Now()
	err = s.all(ctx)
	if err != nil && dir != "" {
		s.set.Note("Not finished: myriad bench --resume %s makes the rest.", dir)
		err = fmt.Errorf("%w; myriad bench --resume %s finishes the rest", err, dir)
	}
	s.set.Took = s.took()
	if s.refused > 0 {
		s.set.Note("Runs that something else on the machine disturbed were repeated until that had taken a quarter of the planned time; %d more were not.", s.refused)
	}
	return s.set, errors.Join(err, s.write())
}

// write works out what follows, and writes the reports, if there is a directory.
func (s *session) write() error {
	if s.options.Judge != nil {
		s.options.Judge(s.set)
	}
	if s.options.Dir == "" || s.options.Write == nil {
		return nil
	}
	return s.options.Write(s.options.Dir, s.set)
}

// begin makes what the runs need.
func (s *session) begin() (err error) {
	s.pinning = choosePinning()
	if s.self = s.options.Self; s.self == "" {
		if s.self, err = os.Executable(); err != nil {
			return err
		}
	}
	s.launcher = newLauncher()
	if err := raiseFileLimit(); err != nil {
		s.noteAll("The limit of open descriptors could not be raised: %v.", err)
	}
	_, err = procfs.ReadMachine()
	if s.sampled = err == nil; err != nil {
		s.noteAll("Figures of the server's processor time, memory and connections are missing: %v.", err)
	}
	return nil
}

// makeCertificate makes a certificate where a workload has TLS, in a directory of its own below
// the report's: what kills this process leaves nothing elsewhere.
func (s *session) makeCertificate() (err error) {
	tls := func(w scenario.Workload) bool { return w.TLS }
	if !slices.ContainsFunc(s.set.Reports, func(r *result.Report) bool { return slices.ContainsFunc(r.Scenario.Workloads, tls) }) {
		return nil
	}
	if s.tmp, err = os.MkdirTemp(s.options.Dir, ".certificate-*"); err == nil {
		s.cert, err = newCertificate(s.tmp)
	}
	return err
}

// noteAll notes something in every report.
func (s *session) noteAll(text string, args ...any) {
	for _, r := range s.set.Reports {
		r.Note(text, args...)
	}
}

// end ends what begin and run have started.
func (s *session) end() (err error) {
	if s.launcher != nil {
		s.launcher.close()
	}
	if s.tmp != "" {
		err = os.RemoveAll(s.tmp)
	}
	return errors.Join(err, s.journal.close())
}

// took is the time of this session and of those before it.
func (s *session) took() time.Duration { return s.found.elapsed + time.Since(s.began) }

// all goes through all steps, until ctx ends.
func (s *session) all(ctx context.Context) error {
	defer s.progress.end()
	n := 0
	for i := range s.set.Reports {
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
func (s *session) step(ctx context.Context, n, report int, st scenario.Step) error {
	r := s.set.Reports[report]
	first := len(r.Runs)
	defer func() {
		supersede(r.Runs[first:])
		if len(r.Runs) > 0 {
			r.Date = r.Runs[0].Started.UTC()
		}
	}()
	r.Runs = append(r.Runs, s.found.runs[stepKey{report, st.Workload.Name, st.Subject.Name, st.Round}]...)
	for s.wants(r.Runs[first:], st) {
		attempt := len(r.Runs) - first + 1
		if ctx.Err() != nil {
			return s.interrupted(ctx, n, r)
		}
		s.progress.begin(n)
		run := s.runner.run(ctx, st, &r.Scenario, r.Runs)
		run.Attempt = attempt
		if ctx.Err() != nil && run.Error != "" { // which is why it failed: that says nothing of the server
			if len(run.Phases) > 0 || st.Workload.Phase(scenario.Broadcast) != nil {
				run.Error, run.Skipped = "", "interrupted"
				r.Runs = append(r.Runs, run) // for what it had seen; the journal does not have it
			}
			return s.interrupted(ctx, n, r)
		}
		r.Runs = append(r.Runs, run)
		if attempt > 1 {
			s.spent += run.Took
		}
		if err := s.journal.write(entry{Report: report, Elapsed: s.took(), Run: &r.Runs[len(r.Runs)-1]}); err != nil {
			return err
		}
	}
	return nil
}

// wants says whether a step is to be run, after these attempts.
func (s *session) wants(attempts []result.Run, st scenario.Step) bool {
	n := len(attempts)
	switch {
	case n == 0:
		return true
	case n > s.repeats || !st.Workload.Measured() || !attempts[n-1].Marked(probe.RuleNoise):
		return false
	case s.spent+st.Workload.Estimate() > s.planned/repeatShare:
		s.refused++
		return false
	}
	return true
}

// supersede has one attempt of a step count: of those that did not fail, if there are any,
// the one that others have disturbed least.
func supersede(attempts []result.Run) {
	counts := 0
	for i := range attempts {
		a, b := &attempts[i], &attempts[counts]
		x, _ := probe.Foreign(a)
		y, _ := probe.Foreign(b)
		if (a.Error == "") != (b.Error == "") && a.Error == "" || (a.Error == "") == (b.Error == "") && x < y {
			counts = i
		}
	}
	for i := range attempts {
		attempts[i].Superseded = i != counts
	}
}

// missing is how many runs are to be made at least.
func (s *session) missing() (n int) {
	for i := range s.set.Reports {
		for _, st := range s.plans[i] {
			if len(s.found.runs[stepKey{i, st.Workload.Name, st.Subject.Name, st.Round}]) == 0 {
				n++
			}
		}
	}
	return n
}

// noteResumed notes in the set and in the journal that it was resumed, and what has changed
// meanwhile.
func (s *session) noteResumed() error {
	before := len(s.set.Notes)
	now := result.ThisMachine()
	s.set.Note("Interrupted, and resumed on %s after %d of %d steps.", time.Now().UTC().Format(time.DateTime+" MST"), len(s.found.runs), s.total)
	if now != s.set.Machine {
		s.set.Note("Resumed on another machine, %s: its runs and those before can't be compared.", now)
	}
	if r := s.set.Reports[0]; r.Pinning.String() != s.pinning.String() {
		s.set.Note("Resumed with another pinning, %s: its runs and those before can't be compared.", s.pinning)
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
func (s *session) interrupted(ctx context.Context, n int, r *result.Report) error {
	r.Note("Interrupted in run %d of %d.", n+1, s.total)
	return interruptedError{n + 1, s.total, ctx.Err()}
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
