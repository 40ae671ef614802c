// Package run runs scenarios. For each run it starts a subject's server, runs the phases of a workload with the load
// generator, samples both at checkpoints, stops them, and computes figures with probes.
//
// An experiment belongs to one goroutine, which executes one run at a time. During a run, other goroutines record the
// timeline, read the load generator's output and monitor the server; the run waits for all of them. Server and load
// generator are separate processes with separate process groups.
package run

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

type runner struct {
	self     string // executable with the subcommands load and hold
	cert     string // PEM file with certificate and key; "" if no workload needs TLS
	files    string // directory with page.css, and for the configuration of a server
	pinning  result.Pinning
	launcher *launcher
	sampled  bool // /proc is available
	progress *progressPrinter
}

const touched = probe.Touched

// runStepIfItFits executes one run. If the machine cannot hold all connections of the run, it skips the run. A run with
// a Broadcast phase is an exception: this run is executed with as many connections as the machine can hold, and is
// skipped only if the machine can hold none.
func (r *runner) runStepIfItFits(ctx context.Context, s scenario.Step, all *scenario.Scenario, earlierRunsForCapacity []result.Run) result.Run {
	w := &s.Workload
	rec := result.Run{
		Workload: w.Name, Subject: s.Subject.Name, Round: s.Round,
		Started: time.Now(), Heartbeats: s.Subject.HasHeartbeat(), Connections: w.Connections,
	}
	stopped, fit := findLimitPreventingRun(s)
	if stopped != "" && (fit < 1 || w.FindPhase(scenario.Broadcast) == nil) {
		rec.Skipped = stopped
		return rec
	}
	*w = w.WithMaxConns(s.Subject.MaxConns)
	if stopped != "" { // such scenarios measure how many connections fit
		*w = w.WithMaxConns(fit)
		rec.Connections = w.Connections
		rec.AddCaveat(probe.RuleFewer, "%s connections, as more don't fit: %s", format.Count(w.Connections), stopped)
	}
	bound := w.Timeout()
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("the run took longer than %v", bound))
	defer cancel()
	others := startMeasuringForeignCPU()
	var err error
	switch {
	case w.FindPhase(scenario.Park) != nil:
		err = r.runGoroutineParkingProcess(ctx, s, &rec)
	case w.FindPhase(scenario.Jobs) != nil:
		err = (&jobsRun{runner: r, phase: *w.FindPhase(scenario.Jobs), scenario: all, earlierRuns: earlierRunsForCapacity, overtime: jobsOvertime}).runContenderAtPlannedRate(ctx, s, &rec)
	default:
		err = r.runServerAndLoad(ctx, s, &rec)
	}
	err = errors.Join(err, r.launcher.takeLeftoverGroupError())
	rec.Foreign, rec.Stolen = others()
	if err != nil {
		rec.Error = err.Error()
	}
	if err == nil || w.FindPhase(scenario.Broadcast) != nil { // partial results of held connections count
		probe.SetFiguresCaveatsAndMismatchError(probe.RunInput{Run: &rec, Workload: *w, Pinning: r.pinningForWorkload(*w)})
	}
	if rec.Error == "" && w.FindPhase(scenario.Attack) == nil { // in an attack, the clients run in this process
		probe.AddCaveatIfNoisy(&rec)
	}
	rec.Took = time.Since(rec.Started)
	return rec
}

func (r *runner) runGoroutineParkingProcess(ctx context.Context, s scenario.Step, rec *result.Run) error {
	rec.Command = s.Subject.CommandWithValues(scenario.PlaceholderValues{Self: r.self, Connections: s.Workload.Connections, Processes: 1})
	p, err := r.launcher.runAndReadLines(ctx, command{args: rec.Command, killDelay: outputKillDelay}, nil, func(line []byte) error {
		var sample result.Sample
		if err := json.Unmarshal(line, &sample); err != nil {
			return fmt.Errorf("unexpected output %.100q: %w; expected a sample", line, err)
		}
		rec.Samples = append(rec.Samples, sample)
		return nil
	})
	if err == nil && (p.err != nil || rec.FindSample("ready") == nil || rec.FindSample("parked") == nil) {
		err = p.newUnexpectedExitError("the process")
	}
	return err
}

type serverMeasurement struct {
	*runner
	step      scenario.Step
	workload  *scenario.Workload
	record    *result.Run
	server    *serverProcess
	generator *process // generator that was started last
	pinning   result.Pinning
	admin     *adminClient // nil if the server has no admin address
	timeline  *timelineRecorder
	baseConns int // number of the server's connections or sockets without the load
}

func (r *runner) runServerAndLoad(ctx context.Context, s scenario.Step, rec *result.Run) error {
	m := &serverMeasurement{runner: r, step: s, workload: &s.Workload, record: rec, pinning: r.pinningForWorkload(s.Workload)}
	var trusted *tls.Config
	if s.Workload.TLS {
		var err error
		if trusted, err = clientTLSConfig(r.cert); err != nil {
			return err
		}
	}
	place, err := m.choosePlaceholderValues()
	if err != nil {
		return err
	}
	if place.Config, err = m.writeConfigFileIfAny(place); err != nil {
		return err
	}
	rec.Command, rec.Processes = s.Subject.CommandWithValues(place), place.Processes
	held := s.Workload.FindPhase(scenario.Broadcast) != nil
	c := command{args: rec.Command, cpus: m.pinning.Server, killDelay: stopKillDelay}
	if held {
		c.killDelay = heldKillDelay
	}
	p, err := r.launcher.startPinnedProcess(context.WithoutCancel(ctx), c, nil) // the server must outlive the generator
	if err != nil {
		return err
	}
	m.server, m.admin = &serverProcess{p, place.Addr}, newAdminClient(place.Admin)
	defer p.terminateAndWait()
	if err := m.awaitServerAndRunPhases(ctx, place.App, trusted); err != nil {
		return err
	}
	p.terminateAndWait()
	switch {
	case !held:
		return nil
	case p.err != nil:
		return p.newUnexpectedExitError("the server")
	}
	return m.sampleAfterReleaseOrTimeout(ctx)
}

func (m *serverMeasurement) choosePlaceholderValues() (scenario.PlaceholderValues, error) {
	w := m.workload
	at := scenario.PlaceholderValues{
		Self: m.self, App: cmp.Or(w.App, app.Lines), Cert: m.cert, Key: m.cert, Files: m.files,
		Heartbeat: w.HeartbeatInterval(), Connections: w.Connections, Processes: m.step.Subject.ServerProcessesFor(*w),
	}
	var err error
	at.Addr, err = freeAddrBelowEphemeralPorts()
	for err == nil && m.step.Subject.HasAdmin() && (at.Admin == "" || at.Admin == at.Addr) {
		at.Admin, err = freeAddrBelowEphemeralPorts()
	}
	return at, err
}

func (m *serverMeasurement) writeConfigFileIfAny(values scenario.PlaceholderValues) (pathOrEmpty string, err error) {
	text := m.step.Subject.ConfigWithValues(values)
	if text == "" {
		return "", nil
	}
	path := filepath.Join(m.files, "server.conf")
	return path, os.WriteFile(path, []byte(text), 0o600)
}

func (m *serverMeasurement) awaitServerAndRunPhases(ctx context.Context, appName string, trusted *tls.Config) error {
	ctx, stop := m.server.contextUntilServerExits(ctx)
	defer stop()
	w := m.workload
	conn, err := m.server.waitUntilAppAnswers(ctx, appName, trusted)
	if err != nil {
		return err
	}
	attack, held := w.FindPhase(scenario.Attack), w.FindPhase(scenario.Broadcast) != nil
	asked := m.admin
	if w.FindPhase(scenario.Hold) != nil {
		asked = nil // because requests would disturb the memory measurement
	}
	if attack != nil || held {
		conn.Close()
	} else if err := m.closeFirstConnAndSampleEmptyServer(ctx, conn.Close); err != nil {
		return err
	}
	m.timeline = m.startTimeline(m.record, m.server.process, asked)
	defer m.timeline.stopAndStoreTimeline() // must stop before the server
	switch {
	case attack != nil:
		return m.runAttackCheckAndStopServer(ctx, *attack)
	case held:
		return m.runHeldPhases(ctx)
	}
	stages, err := w.SplitStagesAtConnects()
	if err != nil {
		return err
	}
	for i := range stages {
		if err := m.runStageAndSample(ctx, stages[i], i == len(stages)-1); err != nil {
			return err
		}
	}
	return nil
}

func (m *serverMeasurement) runStageAndSample(ctx context.Context, s scenario.Stage, isMeasuredStage bool) error {
	holds := s.FindPhase(scenario.Hold)
	if holds.Do != "" {
		guarded, end := cancelWhenMemoryLow(ctx)
		defer end()
		ctx = guarded
	}
	config := m.loadConfigForStage(s)
	began := time.Now()
	seen, err := m.runLoadGenerator(ctx, config, func(e load.Event) error {
		switch e.Phase {
		case load.Connected:
			if holds.Do != "" {
				if err := m.sampleMemoryIfSubscribed(config.PubSub != nil); err != nil {
					return err
				}
				return m.sampleSettledMemoryDuringHold(ctx, probe.Idle, holds)
			}
		case load.Exchanged:
			if holds.Do != "" {
				return m.sampleSettledMemoryDuringHold(ctx, probe.Exchanged, holds)
			}
		case load.Measuring, load.Measured:
			if config.Messages > 0 || !isMeasuredStage {
				break
			}
			err := m.sampleAtWindowStartOrEnd(string(e.Phase), config.Flood)
			if err == nil && holds.Do != "" && e.Phase == load.Measured {
				err = m.sampleSettledMemoryDuringHold(ctx, probe.Exchanged, holds)
			}
			return err
		}
		return nil
	})
	if err != nil {
		if !isMeasuredStage {
			err = fmt.Errorf("%s of %d connections: %w", s.Name(), s.Connections, err)
		}
		return err
	}
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	m.record.Phases = append(m.record.Phases, result.Phase{Name: s.Name(), Took: time.Since(began), Load: []string{string(text)}, Result: seen})
	if end := m.record.FindSample("measured"); end != nil && m.admin != nil && m.record.Processes < 2 {
		end.Runtime = m.admin.readRuntimeTotals(ctx) // not during the window, as a busy server answers late
	}
	if isMeasuredStage || m.workload.FindPhase(scenario.Hold) == nil {
		return nil
	}
	closed, err := m.sampleWhenConnsAndMemorySettle(ctx, touched, closeTimeout, func(open int) bool { return open <= 0 })
	if err == nil && !closed {
		err = fmt.Errorf("the server still had connections open %v after they were closed", closeTimeout)
	}
	if err == nil && m.shouldMeasureIdleCPU() {
		err = m.measureIdleCPUIntoLastSample(ctx)
	}
	return err
}

// sampleSettledMemoryDuringHold takes a sample when all connections are accepted and the memory is stable. If this does
// not happen in the first half of the hold, it takes the sample anyway when this half is over. It adds a caveat if the
// sample is finished only after the end of the hold.
func (m *serverMeasurement) sampleSettledMemoryDuringHold(ctx context.Context, checkpoint string, hold scenario.Phase) error {
	began := time.Now()
	// If there are too few connections, a probe adds a caveat.
	_, err := m.sampleWhenConnsAndMemorySettle(ctx, checkpoint, hold.For.Std()/2, func(open int) bool { return open >= m.workload.ConnsWithPublishersAndSlow() })
	if err == nil && checkpoint == probe.Idle && m.shouldMeasureIdleCPU() {
		err = m.measureIdleCPUIntoLastSample(ctx)
	}
	if err != nil {
		return err
	}
	if took := time.Since(began); took > hold.For.Std() {
		m.record.AddCaveat(probe.RuleHold, "sampled %v after %s, later than the hold of %v", took.Round(time.Millisecond), checkpoint, hold.For)
	}
	return nil
}

func (m *serverMeasurement) sampleMemoryIfSubscribed(subscribed bool) error {
	if !subscribed || !m.sampled {
		return nil
	}
	s, err := m.sampleServerGeneratorAndMachine(probe.Subscribed, memoryParts)
	if err == nil {
		m.appendSampleToRecord(s)
	}
	return err
}

func (m *serverMeasurement) printSubjectProgress(isFinal bool, format string, args ...any) {
	m.progress.printFinalOrProgressLine(isFinal, m.step.Subject.Name+": "+fmt.Sprintf(format, args...))
}

const (
	// floodSendBuffer is the SO_SNDBUF of flooding connections in bytes.
	floodSendBuffer = 16 << 10 // small, so that sent data reaches the server soon
	// floodHold is how long connections stay open after the window.
	floodHold    = time.Second
	verifyDrain  = 2 * time.Second
	announcement = "an announcement to all"
)

func (m *serverMeasurement) loadConfigForStage(s scenario.Stage) load.Config {
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
		return withHoldChecksHeartbeatsAndBroadcast(c, s)
	}
	message := app.FixedMessageFor(w.App)
	c.Message, c.Answer = message.Text, message.Answer
	c.Size = w.Size
	if app.IsHTTP(w.App) {
		c.Match = "http"
	}
	c.Message = cmp.Or(w.Message, c.Message)
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
			c.Unprompted, c.Silent = p.Heartbeat > 0, p.Silent
			c.Rate.PerSecond = float64(p.Rate)
		}
		if p.Do == scenario.Publish {
			c.PubSub = &load.PubSub{
				Protocol: cmp.Or(m.step.Subject.Protocol, "redis"),
				Topics:   min(p.Topics, s.Connections), Publishers: p.Publishers, Slow: p.Slow,
			}
		}
		if p.Do == scenario.Flood {
			c.Flood, c.Steady, c.Pipeline, c.Socket.SendBuffer, c.HoldAfter = true, true, 0, floodSendBuffer, floodHold
			c.Message, c.Answer, c.Size = app.Ping, "", 0
		}
	}
	if w.FindPhase(scenario.Flood) != nil && c.Message == "" {
		c.Message = app.Ping
	}
	return c
}

// withHoldChecksHeartbeatsAndBroadcast returns c with the settings for a run with long-open connections. The load
// generator then verifies all connections twice, expects a broadcast, and answers heartbeats.
func withHoldChecksHeartbeatsAndBroadcast(c load.Config, s scenario.Stage) load.Config {
	c.Hold, c.Check = true, s.Phases[0].InFlight
	c.Broadcast = announcement + "\n"
	if c.WebSocket == nil { // WebSockets use pings instead
		c.Heartbeat, c.HeartbeatAnswer = app.Heartbeat, app.HeartbeatAnswer
	}
	alone, beats, after := s.Phases[1].For.Std(), s.Phases[3], s.Phases[5].For.Std()
	slack := scenario.MaxHeartbeatDelay(beats.Heartbeat.Std())
	c.Duration = alone + time.Duration(beats.For/beats.Heartbeat)*(beats.Heartbeat.Std()+slack) + slack // slack for answers
	c.HoldAfter = after
	c.ProgressEvery = min(max(alone/20, 20*time.Millisecond), time.Second)
	return c
}

// runLoadGenerator runs the load generator. If onEvent is not nil, it is called for each event. If the load generator
// fails and its result states the reason, runLoadGenerator returns the result and no error.
func (m *serverMeasurement) runLoadGenerator(ctx context.Context, c load.Config, onEvent func(load.Event) error) (seen *load.Result, err error) {
	config, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	run := command{args: []string{m.self, "load", "--json", "--config", "-"}, in: bytes.NewReader(config), cpus: m.pinning.Load, killDelay: outputKillDelay}
	if c.Hold {
		run.args[1], run.killDelay = "hold", heldKillDelay
	}
	started := func(p *process) {
		m.generator = p
		m.timeline.switchGeneratorGroup(p.pid())
	}
	p, err := m.launcher.runAndReadLines(ctx, run, started, func(line []byte) error {
		var e load.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("unexpected output of the load generator %.100q: %w", line, err)
		}
		m.timeline.storeLatestFigures(e)
		if e.Result != nil {
			seen = e.Result
		}
		if onEvent == nil {
			return nil
		}
		return onEvent(e)
	})
	m.timeline.switchGeneratorGroup(0)
	switch {
	case err != nil:
		return nil, err
	case seen == nil, p.err != nil && seen.Err() == nil:
		return nil, p.newUnexpectedExitError("the load generator")
	}
	return seen, nil
}

// findLimitPreventingRun checks whether a run would exceed a limit of the machine or of the subject. reason describes
// the limit, or is "" if the run exceeds none. fittingConns is the number of connections that would not exceed the
// limit, or 0 if this number is unknown.
func findLimitPreventingRun(s scenario.Step) (reason string, fittingConns int) {
	w := s.Workload
	if most := s.Subject.MaxConns; w.Whole && most > 0 && w.Connections > most {
		return fmt.Sprintf("%s connections are more than the %s that it can hold: %s",
			format.Count(w.Connections), format.Count(most), s.Subject.Wall), 0
	}
	room, unknown := readAvailableMemory()
	if w.FindPhase(scenario.Park) != nil {
		if need := int64(w.Connections) * maxParkedBytes; unknown == nil && need > room.free-room.bytesToKeepFree() {
			return fmt.Sprintf("memory: %s goroutines need up to %s; %s are free%s", format.Count(w.Connections), format.Bytes(float64(need)), format.Bytes(float64(room.free)), room.limitedBySuffix()), 0
		}
		return "", 0
	}
	n := w.WithMaxConns(s.Subject.MaxConns).Connections
	report, err := predictCapacityForStep(s, n)
	if n < 1 || err != nil {
		return "", 0 // the run itself will fail
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
	if unknown == nil && room.free > room.bytesToKeepFree() { // leave the reserve free
		most := float64(wall.Holds) * float64(room.free-room.bytesToKeepFree()) / float64(room.free)
		fittingConns = scenario.PlaceholderValues{Processes: s.Subject.ServerProcessesFor(w)}.MaxLoadConns(int(most))
	}
	return text + fmt.Sprintf("; `myriad doctor -n %d` shows how to raise it", n), fittingConns
}

func predictCapacityForStep(s scenario.Step, n int) (*doctor.Report, error) {
	facts, err := doctor.Read(0)
	if err != nil {
		return nil, err
	}
	plan := doctor.Plan{Connections: max(n, 1), Side: doctor.Both, Model: cmp.Or(s.Subject.MyriadModel(), "goroutine"), Processes: s.Subject.ServerProcessesFor(s.Workload)}
	if s.Workload.TLS {
		plan.UserMemory = maxTLSConnBytes
		if s.Subject.HasCompactTLS() {
			plan.UserMemory = maxCompactTLSConnBytes
		}
	}
	return doctor.Examine(facts, plan)
}
