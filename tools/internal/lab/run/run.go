// Package run runs scenarios: it starts a subject's server, waits for it, goes through the
// phases of a workload with the load generator, samples both at checkpoints, stops them, and
// has probes work the figures out.
//
// A session belongs to one goroutine, which makes one run at a time. Beside it there are, in a
// run, the goroutine that follows the time line, that which reads the load generator's
// output, and that which watches the server; each is waited for before the run ends. Server
// and load generator are processes of their own, with a process group each.
package run

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/tools/doctor"
	"github.com/myriad-go/myriad/tools/internal/lab/app"
	"github.com/myriad-go/myriad/tools/internal/lab/probe"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
	"github.com/myriad-go/myriad/tools/load"
)

// runner makes runs.
type runner struct {
	self     string // the executable with the subcommands load and hold
	cert     string // the certificate and its key; "" where no workload needs it
	pinning  result.Pinning
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
	stopped, fit := wall(s)
	if stopped != "" && (fit < 1 || w.Phase(scenario.Broadcast) == nil) {
		rec.Skipped = stopped
		return rec
	}
	*w = w.For(s.Subject.MaxConns)
	if stopped != "" { // how many a machine holds is what it is about
		*w = w.For(fit)
		rec.Connections = w.Connections
		rec.Mark(probe.RuleFewer, "%s connections, as more don't fit: %s", format.Count(w.Connections), stopped)
	}
	bound := w.Bound()
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("the run took longer than %v", bound))
	defer cancel()
	others := foreign()
	var err error
	switch {
	case w.Phase(scenario.Park) != nil:
		err = r.park(ctx, s, &rec)
	case w.Phase(scenario.Jobs) != nil:
		err = (&jobs{runner: r, phase: *w.Phase(scenario.Jobs), scenario: all, before: before, slack: jobsSlack}).run(ctx, s, &rec)
	default:
		err = r.serve(ctx, s, &rec)
	}
	err = errors.Join(err, r.launcher.leftover())
	rec.Foreign, rec.Stolen = others()
	if err != nil {
		rec.Error = err.Error()
	}
	if err == nil || w.Phase(scenario.Broadcast) != nil { // of that what there was is recorded
		probe.Measure(probe.Input{Run: &rec, Workload: *w, Pinning: r.pinningOf(*w)})
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
	pinning   result.Pinning
	admin     *admin // nil where the server shows nothing
	timeline  *timeline
	base      int // sockets, or connections, of the server without any of the load
}

// serve starts the server, goes through the phases and ends the server.
func (r *runner) serve(ctx context.Context, s scenario.Step, rec *result.Run) error {
	m := &measurement{runner: r, step: s, workload: &s.Workload, record: rec, pinning: r.pinningOf(s.Workload)}
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
	c := command{args: rec.Command, cpus: m.pinning.Server, grace: stopGrace}
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
		guarded, end := guardMemory(ctx)
		defer end()
		ctx = guarded
	}
	config := m.config(s)
	began := time.Now()
	seen, err := m.generate(ctx, config, func(e load.Event) error {
		switch e.Phase {
		case load.Connected:
			if holds.Do != "" {
				if err := m.atOnce(config.PubSub != nil); err != nil {
					return err
				}
				return m.atRest(ctx, probe.Idle, holds)
			}
		case load.Exchanged:
			if holds.Do != "" {
				return m.atRest(ctx, probe.Exchanged, holds)
			}
		case load.Measuring, load.Measured:
			if config.Messages > 0 || !last {
				break
			}
			err := m.window(string(e.Phase), config.Flood)
			if err == nil && holds.Do != "" && e.Phase == load.Measured {
				err = m.atRest(ctx, probe.Exchanged, holds)
			}
			return err
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
	if err == nil && m.rests() {
		err = m.rest(ctx)
	}
	return err
}

// atRest samples memory while the load holds its connections: when the server has accepted
// all of them, and everything has settled. It must be done within the hold.
func (m *measurement) atRest(ctx context.Context, checkpoint string, hold scenario.Phase) error {
	began := time.Now()
	// One that has too few is marked.
	_, err := m.settled(ctx, checkpoint, hold.For.Std()/2, func(open int) bool { return open >= m.workload.Opens() })
	if err == nil && checkpoint == probe.Idle && m.rests() {
		err = m.rest(ctx)
	}
	if err != nil {
		return err
	}
	if took := time.Since(began); took > hold.For.Std() {
		m.record.Mark(probe.RuleHold, "sampled %v after %s, later than the hold of %v", took.Round(time.Millisecond), checkpoint, hold.For)
	}
	return nil
}

// atOnce samples memory as soon as all have subscribed, if they do.
func (m *measurement) atOnce(subscribed bool) error {
	if !subscribed || !m.sampled {
		return nil
	}
	s, err := m.take(probe.Subscribed, memoryParts)
	if err == nil {
		m.keep(s)
	}
	return err
}

// tell tells of the run as it goes on.
func (m *measurement) tell(final bool, format string, args ...any) {
	m.progress.tell(final, m.step.Subject.Name+": "+fmt.Sprintf(format, args...))
}

const (
	// floodBuffer is SO_SNDBUF of the connections of a flood, in bytes: what they have sent
	// is to be the server's soon.
	floodBuffer = 16 << 10
	// floodHold is how long connections stay open when the window has ended: they are
	// counted meanwhile.
	floodHold = time.Second
	// verifyDrain is how long an answer may not come.
	verifyDrain = 2 * time.Second
	// announcement is the line that is broadcast.
	announcement = "an announcement to all"
)

// config is what the load generator is to do in a stage.
func (m *measurement) config(s scenario.Stage) load.Config {
	w := m.workload
	c := load.Config{Target: m.server.addr, Connections: s.Connections, ConnectRate: s.Rate}
	c.Model, c.Loops = w.LoadModel, cmp.Or(w.LoadLoops, len(m.pinning.Load))
	if w.TLS {
		c.TLS = &load.TLS{CAFile: m.cert}
	}
	if w.App == app.WebSocket {
		c.WebSocket = &load.WebSocket{}
	}
	if s.Held {
		return heldConfig(c, s)
	}
	message := app.MessageOf(w.App)
	c.Message, c.Answer = message.Text, message.Answer
	c.Size = w.Size
	if w.App == app.HTTP {
		c.Match = "http"
	}
	for i, p := range s.Phases {
		switch {
		case p.Do == scenario.Hold && i == 0:
			c.HoldBefore = p.For.Std()
		case p.Do == scenario.Hold:
			c.HoldAfter = p.For.Std()
		case p.Do == scenario.Verify:
			c.Messages, c.Pipeline = int64(p.Messages), p.Messages
			if p.Messages > 1 {
				c.Drain = verifyDrain
			}
		default:
			c.Warmup, c.Duration, c.Pipeline = p.WarmUp.Std(), p.For.Std(), w.Pipeline
			c.Unprompted = p.Heartbeat > 0
			c.Rate.PerSecond = float64(p.Rate)
		}
		if p.Do == scenario.Publish {
			c.PubSub = &load.PubSub{
				Protocol: cmp.Or(m.step.Subject.Protocol, "redis"),
				Topics:   min(p.Topics, s.Connections), Publishers: p.Publishers, Slow: p.Slow,
			}
		}
		if p.Do == scenario.Flood {
			c.Flood, c.Steady, c.Pipeline, c.Socket.SendBuffer, c.HoldAfter = true, true, 0, floodBuffer, floodHold
			c.Message, c.Answer, c.Size = app.Ping, "", 0
		}
	}
	if w.Phase(scenario.Flood) != nil && c.Message == "" {
		c.Message = app.Ping
	}
	return c
}

// heldConfig is that of connections that are held, verified twice, with a broadcast.
func heldConfig(c load.Config, s scenario.Stage) load.Config {
	c.Hold, c.Check = true, s.Phases[0].InFlight
	c.Broadcast = announcement + "\n"
	if c.WebSocket == nil { // which has pings
		c.Heartbeat, c.HeartbeatAnswer = app.Heartbeat, app.HeartbeatAnswer
	}
	alone, beats, after := s.Phases[1].For.Std(), s.Phases[3], s.Phases[5].For.Std()
	slack := scenario.HeartbeatSlack(beats.Heartbeat.Std())
	c.Duration = alone + time.Duration(beats.For/beats.Heartbeat)*(beats.Heartbeat.Std()+slack) + slack // and as much for the answers
	c.HoldAfter = after
	c.ProgressEvery = min(max(alone/20, 20*time.Millisecond), time.Second)
	return c
}

// generate runs the load generator on its CPUs and calls at with each of its events, in
// order; it may be nil. When ctx ends or at returns an error the generator is ended. It has
// ended in any case when generate returns. A generator that fails because of what its result
// says has not failed here: the result is marked.
func (m *measurement) generate(ctx context.Context, c load.Config, at func(load.Event) error) (seen *load.Result, err error) {
	config, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	run := command{args: []string{m.self, "load", "--json", "--config", "-"}, in: bytes.NewReader(config), cpus: m.pinning.Load, grace: outputGrace}
	if c.Hold {
		run.args[1], run.grace = "hold", heldGrace
	}
	started := func(p *process) {
		m.generator = p
		m.timeline.generator(p.pid())
	}
	p, err := m.launcher.lines(ctx, run, started, func(line []byte) error {
		var e load.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("the load generator said %.100q: %w", line, err)
		}
		m.timeline.observe(e)
		if e.Result != nil {
			seen = e.Result
		}
		if at == nil {
			return nil
		}
		return at(e)
	})
	m.timeline.generator(0)
	switch {
	case err != nil:
		return nil, err
	case seen == nil, p.err != nil && seen.Err() == nil:
		return nil, p.failure("the load generator")
	}
	return seen, nil
}

// wall says why a run can't be made, "" if it can: the subject holds fewer connections, or the
// machine does. Nothing has been started.
func wall(s scenario.Step) (why string, fit int) {
	w := s.Workload
	if most := s.Subject.MaxConns; w.Whole && most > 0 && w.Connections > most {
		return fmt.Sprintf("%s connections are more than the %s that it can hold: %s",
			format.Count(w.Connections), format.Count(most), s.Subject.Wall), 0
	}
	room, unknown := readRoom()
	if w.Phase(scenario.Park) != nil {
		if need := int64(w.Connections) * parkedBytes; unknown == nil && need > room.free-room.kept() {
			return fmt.Sprintf("memory: %s goroutines need up to %s; %s are free%s", format.Count(w.Connections), format.Bytes(float64(need)), format.Bytes(float64(room.free)), room.in()), 0
		}
		return "", 0
	}
	n := w.For(s.Subject.MaxConns).Connections
	report, err := examine(s, n)
	if n < 1 || err != nil {
		return "", 0 // or it fails
	}
	i := slices.IndexFunc(report.Walls, func(x doctor.Wall) bool { return !x.Soft && x.Exceeded(n) })
	if i < 0 {
		return "", 0
	}
	wall := &report.Walls[i]
	text := fmt.Sprintf("%s: %s stops %s connections at %s", wall.Name, wall.What, format.Count(n), format.Count(wall.Holds))
	if wall.Present != "" {
		text += "; it is " + wall.Present
	}
	if wall.Needs != "" {
		text += ", needs " + wall.Needs
	}
	if unknown == nil && room.free > room.kept() { // which is to stay free
		most := float64(wall.Holds) * float64(room.free-room.kept()) / float64(room.free)
		fit = scenario.Place{Processes: s.Subject.Processes(w)}.Fit(int(most))
	}
	return text + fmt.Sprintf("; `myriad doctor -n %d` says how to move it", n), fit
}

// examine has package doctor say how many connections of a step this machine holds, with both
// ends on it. A server of somebody else's is taken for one with a goroutine for each.
func examine(s scenario.Step, n int) (*doctor.Report, error) {
	facts, err := doctor.Read(0)
	if err != nil {
		return nil, err
	}
	plan := doctor.Plan{Connections: max(n, 1), Side: doctor.Both, Model: cmp.Or(s.Subject.Model(), "goroutine"), Processes: s.Subject.Processes(s.Workload)}
	if s.Workload.TLS {
		plan.UserMemory = tlsBytes
	}
	return doctor.Examine(facts, plan)
}
