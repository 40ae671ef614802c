package lab

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/myriad-go/myriad/internal/procfs"
)

// Run runs a scenario and reports what it saw. It takes as long as its
// workloads do.
//
// A run that fails is part of the report, with its error, and the next one
// goes on. When ctx ends, or the report cannot be written to Options.Out, the
// report so far is returned together with the error. When nothing could be
// started, such as with a ScenarioError, the report is nil.
//
// Run starts processes of its own, a server and a load generator at a time,
// and has ended and waited for all of them when it returns. On Linux it raises
// this process's soft limit of open descriptors to the hard one and leaves it
// there, so that its children inherit it. Scenarios that run at the same time
// disturb each other's figures, nothing else.
func Run(ctx context.Context, s Scenario, o Options) (*Report, error) {
	s, err := o.apply(s)
	if err != nil {
		return nil, err
	}
	steps, err := s.plan(o.Only)
	if err != nil {
		return nil, err
	}
	self, err := o.self()
	if err != nil {
		return nil, err
	}
	out, err := o.openOut()
	if err != nil {
		return nil, err
	}
	cert, err := s.certificate()
	if err != nil {
		return nil, err
	}
	defer cert.remove() // what is left is a file in the system's temporary directory
	r := &runner{self: self, cert: cert, pinning: choosePinning(), launcher: newLauncher()}
	defer r.launcher.close()
	report := newReport(s, o.command(), r.pinning, len(steps))
	if err := raiseFileLimit(); err != nil {
		report.note("The limit of open descriptors could not be raised: %v.", err)
	}
	_, err = procfs.ReadMachine()
	r.sampled = err == nil
	if err != nil {
		report.note("Figures of the server's processor time, memory and connections are missing: %v.", err)
	}
	r.all(ctx, steps, report, newProgress(o.Progress, steps))
	return report, errors.Join(interrupted(ctx, report), writeOut(out, report))
}

// interrupted says that the scenario was not run to its end.
func interrupted(ctx context.Context, report *Report) error {
	if ctx.Err() == nil {
		return nil
	}
	report.note("Interrupted in run %d of %d.", len(report.Runs), report.Planned)
	return fmt.Errorf("interrupted in run %d of %d: %w", len(report.Runs), report.Planned, ctx.Err())
}

// runner runs steps.
type runner struct {
	self     string
	cert     *certificate // nil where no workload needs it
	pinning  Pinning
	launcher *launcher
	sampled  bool // /proc is available
}

// all runs the steps, one after the other, until ctx ends.
func (r *runner) all(ctx context.Context, steps []step, report *Report, p *progress) {
	defer p.end()
	for i, s := range steps {
		if ctx.Err() != nil {
			return
		}
		p.show(i)
		report.Runs = append(report.Runs, r.run(ctx, s))
	}
}

// run runs one step.
func (r *runner) run(ctx context.Context, s step) RunRecord {
	rec := RunRecord{Workload: s.workload.Name, Subject: s.subject.Name, Round: s.round, Started: time.Now(), Beating: s.subject.beats()}
	s.workload = s.workload.heldBy(s.subject.MaxConns)
	bound := s.workload.bound()
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("the run took longer than %v", bound))
	defer cancel()
	if err := r.measure(ctx, s, &rec); err != nil {
		rec.Error = err.Error()
	} else {
		rec.judge(s.workload, r.pinning.of(s.workload))
	}
	rec.Took = time.Since(rec.Started)
	return rec
}

// measure starts the server, applies the load and ends the server.
func (r *runner) measure(ctx context.Context, s step, rec *RunRecord) error {
	addr, err := freeAddr()
	if err != nil {
		return err
	}
	rec.Command = s.subject.fill(place{r.self, addr, s.workload.App, r.certOf(s.workload), s.workload.Interval})
	pinning := r.pinning.of(s.workload)
	trust, err := r.certOf(s.workload).trust()
	if err != nil {
		return err
	}
	srv, err := r.startServer(ctx, rec.Command, addr, pinning.serverCPUs())
	if err != nil {
		return err
	}
	defer srv.process.end()
	ctx, stop := srv.watch(ctx)
	defer stop()
	conn, err := srv.awaitReady(ctx, s.workload.App, trust)
	if err != nil {
		return err
	}
	m := &measurement{runner: r, server: srv, workload: s.workload, pinning: pinning, record: rec}
	if err := m.ready(ctx, conn); err != nil {
		return err
	}
	if s.workload.Kind == Idle {
		return m.idle(ctx)
	}
	return m.window(ctx)
}

// certOf is the certificate for a workload, nil if it needs none.
func (r *runner) certOf(w Workload) *certificate {
	if !w.TLS {
		return nil
	}
	return r.cert
}
