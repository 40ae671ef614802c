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
	r := &runner{self: self, cert: cert, pinning: choosePinning(), launcher: newLauncher(), room: readRoom}
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
	room     func() (memoryRoom, error)
}

// all runs the steps, one after the other, until ctx ends.
func (r *runner) all(ctx context.Context, steps []step, report *Report, p *progress) {
	defer p.end()
	for i, s := range steps {
		if ctx.Err() != nil {
			return
		}
		p.show(i)
		report.Runs = append(report.Runs, r.run(ctx, s, report.Runs))
	}
}

// run runs one step. It looks at the runs before it.
func (r *runner) run(ctx context.Context, s step, before []RunRecord) RunRecord {
	rec := RunRecord{Workload: s.workload.Name, Subject: s.subject.Name, Round: s.round, Started: time.Now(), Beating: s.subject.beats()}
	if rec.Skipped = r.wall(s, before); rec.Skipped != "" {
		return rec
	}
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
	if s.workload.Kind == Parking {
		return r.park(ctx, s, rec)
	}
	at, err := r.placeOf(s)
	if err != nil {
		return err
	}
	rec.Command, rec.Processes = s.subject.fill(at), at.processes
	pinning := r.pinning.of(s.workload)
	trust, err := r.certOf(s.workload).trust()
	if err != nil {
		return err
	}
	srv, err := r.startServer(ctx, rec.Command, at.addr, pinning.serverCPUs())
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
	m := &measurement{runner: r, server: srv, workload: s.workload, pinning: pinning, record: rec,
		metrics: MetricsSource{Addr: at.admin}, processes: at.processes}
	if err := m.ready(ctx, conn); err != nil {
		return err
	}
	if s.workload.Kind == Idle {
		return m.idle(ctx)
	}
	return m.window(ctx)
}

// placeOf is where a server is to be, and what else its command says.
func (r *runner) placeOf(s step) (place, error) {
	addr, err := freeAddr()
	if err != nil {
		return place{}, err
	}
	at := place{
		self: r.self, addr: addr, app: s.workload.App, cert: r.certOf(s.workload), heartbeat: s.workload.Interval,
		n: s.workload.Connections, processes: s.subject.processes(s.workload),
	}
	for err == nil && s.workload.Full && s.subject.shows() && (at.admin == "" || at.admin == addr) {
		at.admin, err = freeAddr()
	}
	return at, err
}

// certOf is the certificate for a workload, nil if it needs none.
func (r *runner) certOf(w Workload) *certificate {
	if !w.TLS {
		return nil
	}
	return r.cert
}
