package lab

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/myriad-go/myriad/doctor"
)

// runner runs steps.
type runner struct {
	self     string
	cert     *certificate // nil where no workload needs it
	pinning  Pinning
	launcher *launcher
	sampled  bool // /proc is available
	room     func() (memoryRoom, error)
	scenario *Scenario
	before   []RunRecord   // the runs before the one under way
	facts    *doctor.Facts // nil where they can't be read
	capture  capture
	progress *progress
}

// run runs one step. It looks at the runs before it.
func (r *runner) run(ctx context.Context, s step, before []RunRecord) RunRecord {
	rec := RunRecord{
		Workload: s.workload.Name, Subject: s.subject.Name, Round: s.round, Attempt: s.attempt,
		Started: time.Now(), Beating: s.subject.beats(),
	}
	if rec.Skipped = r.wall(s, before); rec.Skipped != "" {
		return rec
	}
	r.before = before
	s.workload = s.workload.heldBy(s.subject.MaxConns)
	bound := s.workload.bound()
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("the run took longer than %v", bound))
	defer cancel()
	foreign := watchForeign()
	err := errors.Join(r.measure(ctx, s, &rec), r.launcher.sweep())
	rec.Foreign, rec.Stolen = foreign()
	if err != nil {
		rec.Error = err.Error()
	} else {
		rec.judge(s.workload, r.pinning.of(s.workload))
	}
	rec.Took = time.Since(rec.Started)
	return rec
}

// measure starts the server, applies the load and ends the server.
func (r *runner) measure(ctx context.Context, s step, rec *RunRecord) error {
	if k := kinds[s.workload.Kind]; k.run != nil {
		return k.run(ctx, r, s, rec)
	}
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
	m.follow()
	defer m.timeline.stop() // before the server is ended
	if err := m.ready(ctx, conn); err != nil {
		return err
	}
	// Whatever follows the run from here to its end begins here: the server is ready.
	m.captures = r.capture.of(s, at.admin, rec)
	switch s.workload.Kind {
	case Idle:
		return m.idle(ctx)
	case Flood:
		return m.flood(ctx)
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
	for err == nil && s.subject.shows() && (at.admin == "" || at.admin == addr) {
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
