package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/tools/internal/lab/app"
	"github.com/myriad-go/myriad/tools/internal/lab/probe"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
	"github.com/myriad-go/myriad/tools/internal/procfs"
	"github.com/myriad-go/myriad/tools/internal/version"
)

// Options configure RunScenarios. The zero value runs scenarios as written.
type Options struct {
	scenario.Options
	// Dir is the directory for the report. If it exists, it must be empty. If Dir is "", no report is written.
	Dir string
	// Evaluate, if not nil, is called after the last run and computes the verdicts. Write, if not nil, is called after
	// Evaluate and writes the reports to Dir. Write is not called if Dir is "".
	Write    func(dir string, s *result.Set) error
	Evaluate func(s *result.Set)
	// Strict makes those claims required that are required only in strict mode (scenario.IfStrict).
	Strict bool
	// Repeat is the maximum number of times that a run is repeated because other programs disturbed it. The least
	// disturbed attempt counts. The default is 0.
	Repeat int
	// Progress receives the directory of the report, and lines that describe the progress. On a terminal, one line
	// describes the current run, and each update overwrites this line. If Progress is not a terminal, it receives a
	// line when a workload begins, and a line for each important step. Nil disables the output.
	Progress io.Writer
	// Self is the path of an executable with the subcommands load and hold. Self also replaces "{self}" in commands.
	// The default "" means the executable of this process.
	Self string
	// Command is the command line that the report shows. The default "" means the command line of this process.
	Command string
}

// RunScenarios runs scenarios one after the other. At any time, it runs at most one server and one load generator.
// After a failed run, it continues with the next run.
//
// If ctx ends or the reports cannot be written, RunScenarios returns the set of the runs so far and an error. An error
// because of ctx wraps ctx.Err(). If the runs cannot be prepared, for example because of a scenario.Error, the set is
// nil.
//
// When RunScenarios returns, all processes that it started have ended. On Linux, they also end if this process is
// killed. On Linux, RunScenarios raises this process's soft limit of open descriptors to the hard limit.
func RunScenarios(ctx context.Context, all []scenario.Scenario, o Options) (*result.Set, error) {
	s, err := planExperiment(all, o)
	if err != nil {
		return nil, err
	}
	if o.Dir != "" {
		if err := makeOrRequireEmptyDir(o.Dir); err != nil {
			return nil, err
		}
	}
	return s.runEvaluateAndWriteReports(ctx)
}

// EstimateRuns returns how many runs RunScenarios would execute without repetitions, and how long they would take.
func EstimateRuns(all []scenario.Scenario, o Options) (runs int, duration time.Duration, err error) {
	s, err := planExperiment(all, o)
	if err != nil {
		return 0, 0, err
	}
	return len(s.steps), estimateTotalDuration(s.steps), nil
}

func makeOrRequireEmptyDir(dir string) error {
	if strings.ContainsAny(dir, "\r\n") {
		return scenario.Errorf("directory %q; expected a name without line breaks", dir)
	}
	info, missing := os.Stat(dir)
	switch names, err := os.ReadDir(dir); {
	case missing == nil && !info.IsDir(), errors.Is(missing, syscall.ENOTDIR):
		return scenario.Errorf("%s is a file or has a file as its parent; expected an empty directory, or one that does not exist yet", dir)
	case len(names) > 0:
		return scenario.Errorf("directory %s is not empty; expected an empty one, or one that does not exist yet", dir)
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("cannot write the report: %w", err)
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("cannot write the report: %w", err)
	}
	return nil
}

// experiment runs all scenarios in order and collects the reports. Only one goroutine may use it.
type experiment struct {
	runner
	options Options
	set     *result.Set
	steps   []scenario.Step  // steps of all reports
	reports []*result.Report // report of each step
}

func planExperiment(all []scenario.Scenario, o Options) (*experiment, error) {
	if n := len(all); n < 1 || n > scenario.MaxParts {
		return nil, scenario.Errorf("%d scenarios; expected 1 to %d", n, scenario.MaxParts)
	}
	s := &experiment{options: o, set: &result.Set{
		Format: result.Format, Version: version.MyriadVersion(), Machine: result.DescribeThisMachine(), Date: time.Now().UTC(),
		Command: cmp.Or(o.Command, strings.Join(os.Args, " ")), Scale: o.Scale, Strict: o.Strict,
	}}
	s.pinning = splitAllowedCPUs()
	var none error
	for _, one := range all {
		one, err := o.ApplyForThisMachine(one)
		if err != nil {
			return nil, err
		}
		steps, err := one.PlanSteps(o.Only)
		if err != nil { // Options.Only may exclude some of several scenarios
			none = err
			continue
		}
		r := &result.Report{Scenario: one, Pinning: s.pinning, Notes: one.Notes, Planned: len(steps), Runs: []result.Run{}}
		s.set.Reports = append(s.set.Reports, r)
		s.steps = append(s.steps, steps...)
		s.reports = append(s.reports, slices.Repeat([]*result.Report{r}, len(steps))...)
	}
	if len(s.steps) == 0 {
		return nil, none
	}
	s.progress = newProgressPrinter(o.Progress, s.steps)
	return s, nil
}

func (s *experiment) runEvaluateAndWriteReports(ctx context.Context) (_ *result.Set, err error) {
	end, err := s.createRunResources()
	defer func() { err = errors.Join(err, end()) }()
	if err != nil {
		return nil, err
	}
	dir := s.options.Dir
	if dir != "" {
		s.progress.printFinalOrProgressLine(true, "report in "+dir)
	}
	began := time.Now()
	err = s.runAllSteps(ctx)
	s.set.Took = time.Since(began)
	if s.options.Evaluate != nil {
		s.options.Evaluate(s.set)
	}
	if dir != "" && s.options.Write != nil {
		err = errors.Join(err, s.options.Write(dir, s.set))
	}
	return s.set, err
}

// createRunResources creates the launcher, the files and the certificate that all runs use. The caller must call
// release after the last run. If createRunResources returns an error, the caller must call release, too.
func (s *experiment) createRunResources() (release func() error, err error) {
	s.launcher = newLauncher()
	tmp := ""
	release = func() error {
		s.launcher.close()
		if tmp == "" {
			return nil
		}
		return os.RemoveAll(tmp)
	}
	if s.self = s.options.Self; s.self == "" {
		if s.self, err = os.Executable(); err != nil {
			return release, err
		}
	}
	if err := raiseDescriptorLimit(); err != nil {
		s.addNoteToReports("The limit of open descriptors could not be raised: %v.", err)
	}
	_, err = procfs.ReadKernelCPUsAndMemory()
	if s.sampled = err == nil; err != nil {
		s.addNoteToReports("Figures of the server's processor time, memory and connections are missing: %v.", err)
	}
	// The files are stored in the report's directory, so that a killed process leaves nothing elsewhere.
	if tmp, err = os.MkdirTemp(s.options.Dir, ".files-*"); err != nil {
		return release, err
	}
	if s.files, err = filepath.Abs(tmp); err == nil {
		err = os.WriteFile(filepath.Join(tmp, "page.css"), app.Large, 0o600)
	}
	if err == nil && slices.ContainsFunc(s.steps, func(st scenario.Step) bool { return st.Workload.TLS }) {
		s.cert, err = writeSelfSignedCertAndKey(s.files)
	}
	return release, err
}

func (s *experiment) addNoteToReports(text string, args ...any) {
	for _, r := range s.set.Reports {
		r.AddNote(text, args...)
	}
}

func (s *experiment) runAllSteps(ctx context.Context) error {
	defer s.progress.clearTerminalLine()
	for i, st := range s.steps {
		if ctx.Err() != nil {
			return s.noteInterruptionAndMakeError(ctx, i)
		}
		r := s.reports[i]
		s.progress.setCurrentStepAndPrint(i)
		run := s.runStepRepeatingIfDisturbed(ctx, st, r)
		stopped := ctx.Err() != nil && run.Error != "" // the interrupt, not the server, made the run fail
		if stopped {
			run.Error, run.Skipped = "", result.Interrupted
		}
		if !stopped || len(run.Phases) > 0 || st.Workload.FindPhase(scenario.Broadcast) != nil { // the run has partial results
			r.Runs = append(r.Runs, run)
		}
		if stopped {
			return s.noteInterruptionAndMakeError(ctx, i)
		}
	}
	return nil
}

// runStepRepeatingIfDisturbed runs a step, and repeats it up to Options.Repeat times if other programs disturbed it. It
// returns the least disturbed run.
func (s *experiment) runStepRepeatingIfDisturbed(ctx context.Context, st scenario.Step, r *result.Report) result.Run {
	best := s.runner.runStepIfItFits(ctx, st, &r.Scenario, r.Runs)
	for n := 0; n < s.options.Repeat && best.HasCaveat(probe.RuleNoise) && ctx.Err() == nil; n++ {
		again := s.runner.runStepIfItFits(ctx, st, &r.Scenario, r.Runs)
		was, _ := probe.CPUsUsedByOthers(&best)
		if is, _ := probe.CPUsUsedByOthers(&again); again.IsValid() && is < was {
			best = again
		}
	}
	return best
}

func (s *experiment) noteInterruptionAndMakeError(ctx context.Context, step int) error {
	s.reports[step].AddNote("Interrupted in run %d of %d.", step+1, len(s.steps))
	return interruptedError{step + 1, len(s.steps), ctx.Err()}
}

type interruptedError struct {
	run, of int
	reason  error
}

func (e interruptedError) Error() string {
	return fmt.Sprintf("interrupted in run %d of %d", e.run, e.of)
}

func (e interruptedError) Unwrap() error { return e.reason }
