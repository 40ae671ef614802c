// Package run runs scenarios: it starts a subject's server, waits for it, goes through the
// phases of a workload with the load generator, samples both at checkpoints, stops them, and
// has probes work the figures out. Each run is appended to a journal, so that what was
// interrupted can be resumed.
//
// A session belongs to one goroutine, which makes one run at a time. Beside it there are, in a
// run, the goroutine that follows the time line, that which reads the load generator's
// output, and that which watches the server; each is waited for before the run ends. Server
// and load generator are processes of their own, with a process group each.
package run

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/myriad-go/myriad/internal/lab/app"
	"github.com/myriad-go/myriad/internal/lab/probe"
	"github.com/myriad-go/myriad/internal/lab/result"
	"github.com/myriad-go/myriad/internal/lab/scenario"
	"github.com/myriad-go/myriad/load"
)

// runner makes runs.
type runner struct {
	self     string // the executable with the subcommands load and hold
	cert     string // the certificate and its key; "" where no workload needs it
	pinning  pinning
	launcher *launcher
	sampled  bool // /proc is available
	progress *progress
}

const touched = probe.Touched

// run makes one run. It looks at the runs before it, of the same scenario.
func (r *runner) run(ctx context.Context, s scenario.Step, all *scenario.Scenario, before []result.Run) result.Run {
	w := &s.Workload
	rec := result.Run{
		Workload: w.Name, Subject: s.Subject.Name, Round: s.Round,
		Started: time.Now(), Beating: s.Subject.Beats(), Connections: w.Connections,
	}
	if rec.Skipped = wall(s); rec.Skipped != "" {
		return rec
	}
	*w = w.For(s.Subject.MaxConns)
	bound := w.Bound()
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("the run took longer than %v", bound))
	defer cancel()
	others := foreign()
	var err error
	switch {
	case w.Phase(scenario.Park) != nil:
		err = r.park(ctx, s, &rec)
	case w.Phase(scenario.Jobs) != nil:
		err = (&jobs{runner: r, phase: *w.Phase(scenario.Jobs), scenario: all, before: before}).run(ctx, s, &rec)
	default:
		err = r.serve(ctx, s, &rec)
	}
	err = errors.Join(err, r.launcher.leftover())
	rec.Foreign, rec.Stolen = others()
	if err != nil {
		rec.Error = err.Error()
	}
	if err == nil || w.Phase(scenario.Broadcast) != nil { // of that what there was is told
		probe.Measure(probe.Input{Run: &rec, Workload: *w, Pinning: r.pinning.of(*w).Pinning})
	}
	if rec.Error == "" && w.Phase(scenario.Attack) == nil { // whose clients live in the lab
		probe.MarkNoise(&rec)
	}
	rec.Took = time.Since(rec.Started)
	return rec
}

// park has a process of its own park goroutines. Its output is its samples.
func (r *runner) park(ctx context.Context, s scenario.Step, rec *result.Run) error {
	rec.Command = s.Subject.Fill(scenario.Place{Self: r.self, Connections: s.Workload.Connections, Processes: 1})
	p, err := r.launcher.lines(ctx, command{args: rec.Command, grace: outputGrace}, nil, func(line []byte) error {
		var sample result.Sample
		if err := json.Unmarshal(line, &sample); err != nil {
			return fmt.Errorf("the process said %.100q: %w; expected a sample", line, err)
		}
		rec.Samples = append(rec.Samples, sample)
		return nil
	})
	if err == nil && (p.err != nil || rec.Sample("ready") == nil || rec.Sample("parked") == nil) {
		err = p.failure("the process")
	}
	return err
}

// measurement is a run under way, its server being up.
type measurement struct {
	*runner
	step      scenario.Step
	workload  *scenario.Workload
	record    *result.Run
	server    *server
	generator *process // the last one that was started
	pinning   pinning
	admin     *admin // nil where the server shows nothing
	timeline  *timeline
	base      int // sockets, or connections, of the server without any of the load
}

// serve starts the server, goes through the phases and ends the server.
func (r *runner) serve(ctx context.Context, s scenario.Step, rec *result.Run) error {
	m := &measurement{runner: r, step: s, workload: &s.Workload, record: rec, pinning: r.pinning.of(s.Workload)}
	var trusted *tls.Config
	if s.Workload.TLS {
		var err error
		if trusted, err = trust(r.cert); err != nil {
			return err
		}
	}
	place, err := m.place()
	if err != nil {
		return err
	}
	rec.Command, rec.Processes = s.Subject.Fill(place), place.Processes
	held := s.Workload.Phase(scenario.Broadcast) != nil
	c := command{args: rec.Command, cpus: m.pinning.serverCPUs(), grace: stopGrace}
	if held {
		c.grace = heldGrace
	}
	p, err := r.launcher.start(context.WithoutCancel(ctx), c, nil) // it is ended after the generator
	if err != nil {
		return err
	}
	m.server, m.admin = &server{p, place.Addr}, newAdmin(place.Admin)
	defer p.end()
	if err := m.phases(ctx, place.App, trusted); err != nil {
		return err
	}
	p.end()
	switch {
	case !held:
		return nil
	case p.err != nil:
		return p.failure("the server")
	}
	return m.left(ctx)
}

// place is where the server is to be, and what else its command says.
func (m *measurement) place() (scenario.Place, error) {
	w := m.workload
	at := scenario.Place{
		Self: m.self, App: cmp.Or(w.App, app.Lines), Cert: m.cert, Key: m.cert,
		Heartbeat: w.Heartbeat(), Connections: w.Connections, Processes: m.step.Subject.Processes(*w),
	}
	var err error
	at.Addr, err = freeAddr()
	for err == nil && m.step.Subject.HasAdmin() && (at.Admin == "" || at.Admin == at.Addr) {
		at.Admin, err = freeAddr()
	}
	return at, err
}

// phases waits for the server, which serves an app, and goes through the phases.
func (m *measurement) phases(ctx context.Context, name string, trusted *tls.Config) error {
	ctx, stop := m.server.watch(ctx)
	defer stop()
	w := m.workload
	conn, err := m.server.awaitReady(ctx, name, trusted)
	if err != nil {
		return err
	}
	attack, held := w.Phase(scenario.Attack), w.Phase(scenario.Broadcast) != nil
	asked := m.admin
	if w.Phase(scenario.Hold) != nil {
		asked = nil // memory is what it is about
	}
	if attack != nil || held {
		conn.Close()
	} else if err := m.ready(ctx, conn.Close); err != nil {
		return err
	}
	m.timeline = m.follow(m.record, m.server.process, asked)
	defer m.timeline.stop() // before the server is ended
	switch {
	case attack != nil:
		return m.attack(ctx, *attack)
	case held:
		return m.hold(ctx)
	}
	stages, err := w.Stages()
	if err != nil {
		return err
	}
	for i := range stages {
		if err := m.stage(ctx, stages[i], i == len(stages)-1); err != nil {
			return err
		}
	}
	return nil
}

// stage is one run of the load generator. What comes before the last stage has the server run
// through its code once, or checks it.
func (m *measurement) stage(ctx context.Context, s scenario.Stage, last bool) error {
	holds := s.Phase(scenario.Hold)
	if holds.Do != "" {
		var over context.CancelCauseFunc
		ctx, over = context.WithCancelCause(ctx)
		defer over(nil)
		guard := newMemoryGuard(m.workload, over, nil)
		guard.begin()
		defer guard.end()
	}
	config := m.config(s)
	began := time.Now()
	seen, err := m.generate(ctx, config, func(e load.Event) error {
		switch e.Phase {
		case load.Connected:
			if holds.Do != "" {
				return m.atRest(ctx, probe.Idle, holds)
			}
		case load.Exchanged:
			if holds.Do != "" {
				return m.atRest(ctx, probe.Exchanged, holds)
			}
		case load.Measuring, load.Measured:
			if config.Messages == 0 {
				return m.window(string(e.Phase), config.Flood)
			}
		}
		return nil
	})
	if err != nil {
		if !last {
			err = fmt.Errorf("%s of %d connections: %w", s.Name(), s.Connections, err)
		}
		return err
	}
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	m.record.Phases = append(m.record.Phases, result.Phase{Name: s.Name(), Took: time.Since(began), Load: []string{string(text)}, Result: seen})
	if last || m.workload.Phase(scenario.Hold) == nil {
		return nil
	}
	closed, err := m.settled(ctx, touched, closeBound, func(open int) bool { return open <= 0 })
	if err == nil && !closed {
		err = fmt.Errorf("the server still had connections open %v after they were closed", closeBound)
	}
	return err
}

// atRest samples memory while the load holds its connections: when the server has accepted
// all of them, and everything has settled. It must be done within the hold.
func (m *measurement) atRest(ctx context.Context, checkpoint string, hold scenario.Phase) error {
	began := time.Now()
	// One that has too few is marked.
	if _, err := m.settled(ctx, checkpoint, hold.For.Std()/2, func(open int) bool { return open >= m.workload.Connections }); err != nil {
		return err
	}
	if took := time.Since(began); took > hold.For.Std() {
		m.record.Mark(probe.RuleHold, "sampled %v after %s, later than the hold of %v", took.Round(time.Millisecond), checkpoint, hold.For)
	}
	return nil
}

// tell tells of the run as it goes on.
func (m *measurement) tell(final bool, format string, args ...any) {
	m.progress.tell(final, m.step.Subject.Name+": "+fmt.Sprintf(format, args...))
}
