package lab

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/myriad-go/myriad/load"
)

// millionRunner runs one run. It belongs to the runner's goroutine.
//
// Phases follow each other without a gap. All but the last end with an event of the
// generator, which does not go on while one is looked at for long; so nothing else
// takes care of time, and a phase is up to an interval of the generator longer than it
// was to be.
type millionRunner struct {
	*runner
	subject  Subject
	workload Workload
	load     MillionLoad // the workload's, filled
	whole    *RunRecord
	record   *MillionRun // of it

	server    *server
	stats     serverStats
	generator *measurement
	guard     *memoryGuard
	caller    *caller // while there is a broadcast

	asked int64  // lines of roll calls
	phase string // under way, "" for none
	since time.Time
	last  MillionSample // of the phase before
}

func newMillionRunner(r *runner, s step, rec *RunRecord) *millionRunner {
	rec.Million = &MillionRun{Phases: []MillionPhase{}}
	return &millionRunner{
		runner: r, subject: s.subject, workload: s.workload, load: s.workload.million(), whole: rec, record: rec.Million,
	}
}

// The phases of a run.
const (
	phaseConnect    = "connect"
	phaseCheck      = "check"
	phaseIdle       = "idle"
	phaseBroadcast  = "broadcast"
	phaseHeartbeats = "heartbeats"
	phaseAgain      = "check again"
	phaseClose      = "close"
)

const (
	// mostIdle is how long connections are left alone at most: so long one second
	// more of the machine's own work does not count.
	mostIdle = 10 * time.Second
	// mostAfter is the same for the time behind the last check: a sample takes some
	// tenths of a second.
	mostAfter = 2 * time.Second
	// countBound, and countEach for each connection, is how long the server may take
	// to have accepted, or closed, what the generator has opened, or closed. With 28
	// other processes that wanted two processors it closed 11,000 a second.
	countBound = 10 * time.Second
	countEach  = 200 * time.Microsecond
)

// alone is how long connections are left alone.
func (w Workload) alone() time.Duration { return min(mostIdle, w.held()/8) }

// after is how long connections are held behind the last check, so that they can be
// counted and their memory be looked at.
func (w Workload) after() time.Duration { return min(mostAfter, w.held()) }

// every is the generator's interval.
func (w Workload) every() time.Duration {
	return min(max(w.held()/20, 20*time.Millisecond), time.Second)
}

// run runs the subject, and judges the run however it has ended.
func (m *millionRunner) run(ctx context.Context) error {
	m.record.Doctor = m.askDoctor()
	for _, line := range m.record.Doctor {
		m.tell(true, "doctor: %s", line)
	}
	defer func(usual time.Duration) { m.launcher.grace = usual }(m.launcher.grace)
	m.launcher.grace = millionGrace
	err := m.serve(ctx)
	(&millionJudge{m.record, m.whole.Result}).judge(m.workload)
	return err
}

// serve starts the server, holds the connections, and ends the server.
func (m *millionRunner) serve(ctx context.Context) error {
	at, err := m.place()
	if err != nil {
		return err
	}
	m.whole.Command, m.whole.Processes = m.subject.fill(at), at.processes
	m.whole.Load = m.workload.millionLoad(m.self, at.addr)
	if m.server, err = m.startServer(ctx, m.whole.Command, at.addr, nil); err != nil {
		return err
	}
	m.stats = newServerStats(at.admin)
	defer m.stats.close()
	defer m.server.process.end()
	if err := m.connections(ctx); err != nil {
		return err
	}
	m.server.process.end()
	if err := m.server.process.err; err != nil {
		return m.server.process.failure("the server")
	}
	return m.left(ctx)
}

// connections holds them, from the first to the last.
func (m *millionRunner) connections(ctx context.Context) error {
	ctx, stop := m.server.watch(ctx)
	defer stop()
	conn, err := m.server.awaitReady(ctx, Lines, nil)
	if err != nil {
		return err
	}
	conn.Close()
	if err := m.awaitProbe(ctx); err != nil {
		return err
	}
	if err := m.before(ctx); err != nil {
		return err
	}
	ctx, over := context.WithCancelCause(ctx)
	defer over(nil)
	line := m.follow(m.whole, m.server.process, "", m.whole.Processes)
	defer line.stop()
	m.generator = &measurement{runner: m.runner, server: m.server, record: m.whole, timeline: line}
	m.guard = &memoryGuard{keep: m.load.KeepFree, room: m.room, over: over, enough: func() error { return m.generator.generator.enough() }}
	m.whole.Result, err = m.generator.generate(ctx, m.whole.Load, func(e load.Event) error { return m.at(ctx, e) })
	m.guard.end()
	if m.caller != nil {
		m.caller.conn.Close()
		<-m.caller.done
	}
	if err != nil {
		return err
	}
	return m.closed(ctx)
}

// at takes an event of the generator.
func (m *millionRunner) at(ctx context.Context, e load.Event) error {
	switch e.Phase {
	case load.Began:
		m.begin(e.Plan)
		return nil
	case load.Connected:
		return m.connected(ctx, e.Snapshot.Open)
	case load.Checked:
		return m.checked(ctx, e.Verification)
	case load.Progress:
		m.show(e)
		if m.phase == phaseIdle && time.Since(m.since) >= m.workload.alone() {
			return m.broadcast(ctx)
		}
	case load.Heard:
		if m.phase == phaseBroadcast {
			return m.heard(ctx, e.Broadcast)
		}
	case load.Measured:
		return m.released(ctx)
	}
	return nil
}

// begin is before the first connection. The generator says itself what it had then.
func (m *millionRunner) begin(plan *load.Plan) {
	if plan != nil && plan.Generator != nil {
		had := &m.record.Before.Load
		had.RSS, had.Anonymous = plan.Generator.Resident, plan.Generator.Anonymous
	}
	m.last, m.since, m.phase = m.record.Before, time.Now(), phaseConnect
	m.guard.begin()
}

// connected is when no more connections are opened: the server is to have so many.
func (m *millionRunner) connected(ctx context.Context, open int64) error {
	stopped := m.guard.connected()
	if _, err := m.awaitOpen(ctx, open); err != nil {
		return err
	}
	err := m.end(ctx, phaseCheck, func(p *MillionPhase) { p.count(p.End.Counts.Accepted - m.record.Before.Counts.Accepted) })
	if stopped != nil && err == nil {
		stopped.At = m.last.Counts.Open
		m.record.Stopped = stopped
		m.tell(true, "%v", stopped)
	}
	return err
}

// checked is when a roll call is over.
func (m *millionRunner) checked(ctx context.Context, call *load.Verification) error {
	if call == nil {
		return errors.New("the load generator told of a roll call without what came of it")
	}
	m.asked += call.Asked
	next, over := phaseIdle, time.Now()
	if call.Number > 1 {
		m.phase, next = phaseAgain, phaseClose
		if err := m.awaitAnswers(ctx); err != nil {
			return err
		}
	}
	err := m.end(ctx, next, func(p *MillionPhase) { p.Count, p.Rate, p.Latency = call.Checked, call.Rate(), call.Latency })
	if next == phaseClose {
		m.since = over.Add(m.workload.after())
	}
	return err
}

// broadcast ends the time in which connections were left alone, with a line to all.
func (m *millionRunner) broadcast(ctx context.Context) (err error) {
	if err := m.end(ctx, phaseBroadcast, func(*MillionPhase) {}); err != nil {
		return err
	}
	m.caller, err = call(ctx, m.server.addr)
	return err
}

// heard is when all connections have that line.
func (m *millionRunner) heard(ctx context.Context, b *load.Broadcast) error {
	if b == nil {
		return errors.New("the load generator told of a broadcast without what came of it")
	}
	return m.endBroadcast(ctx, phaseHeartbeats, func(p *MillionPhase) {
		p.count(b.Heard)
		p.Latency = b.After
	})
}

// endBroadcast lets go of the connection that has asked for it.
func (m *millionRunner) endBroadcast(ctx context.Context, next string, fill func(*MillionPhase)) error {
	m.record.Caller = m.caller.end()
	m.caller = nil
	if _, err := m.awaitOpen(ctx, m.last.Counts.Open); err != nil {
		return err
	}
	return m.end(ctx, next, fill)
}

// released is when the connections were held for as long as they were to be.
func (m *millionRunner) released(ctx context.Context) error {
	switch m.phase {
	case phaseIdle: // the generator has told of no progress
		return m.end(ctx, phaseAgain, func(*MillionPhase) {})
	case phaseBroadcast: // not all have heard it
		return m.endBroadcast(ctx, phaseAgain, func(*MillionPhase) {})
	case phaseHeartbeats:
		before := m.last.Counts.Heartbeats
		return m.end(ctx, phaseAgain, func(p *MillionPhase) { p.count(p.End.Counts.Heartbeats - before) })
	}
	return nil
}

// closed is when the generator has ended.
func (m *millionRunner) closed(ctx context.Context) error {
	open := m.last.Counts.Open
	left, err := m.awaitOpen(ctx, 0)
	if err != nil {
		return err
	}
	if result := m.whole.Result; len(m.record.Phases) > 0 {
		m.record.Phases[0].Latency = result.Connect
	}
	m.phase = phaseClose // also where the generator has ended before its time
	return m.end(ctx, "", func(p *MillionPhase) { p.count(open - left) })
}

// end ends the phase under way and begins another one. What there was is filled in by
// fill, which finds the time and the samples there.
func (m *millionRunner) end(ctx context.Context, next string, fill func(*MillionPhase)) error {
	p := MillionPhase{Name: m.phase, Took: max(time.Since(m.since), 0)}
	if m.phase == phaseIdle {
		m.collect(ctx, laterCollections) // sizes are told by this sample, and the first
	}
	var err error
	if p.End, err = m.sample(ctx); err != nil {
		return fmt.Errorf("sample after %s: %w", m.phase, err)
	}
	p.ServerCPU, p.LoadCPU = p.End.Server.CPU-m.last.Server.CPU, p.End.Load.CPU-m.last.Load.CPU
	p.Sampled = p.End.At.Sub(m.last.At)
	fill(&p)
	m.record.Phases = append(m.record.Phases, p)
	m.tell(true, "%s", p.String())
	m.phase, m.since, m.last = next, time.Now(), p.End
	return nil
}

// count is what a phase is about, with its rate.
func (p *MillionPhase) count(n int64) {
	p.Count = n
	if p.Took > 0 {
		p.Rate = float64(n) / p.Took.Seconds()
	}
}

// awaitOpen waits until the server has so many connections, but not for ever, and says
// how many it has.
func (m *millionRunner) awaitOpen(ctx context.Context, want int64) (int64, error) {
	c, err := m.stats.await(ctx, m.countBound(), func(c *MillionCounts) bool { return c.Open == want })
	return c.Open, err
}

// awaitProbe waits until the server has counted the lab's first connection, and its end:
// the counts of worker processes come a moment later.
func (m *millionRunner) awaitProbe(ctx context.Context) error {
	_, err := m.stats.await(ctx, m.countBound(), func(c *MillionCounts) bool { return c.Accepted > 0 && c.Open == 0 })
	return err
}

func (m *millionRunner) countBound() time.Duration {
	return countBound + countEach*time.Duration(m.workload.Connections)
}

// awaitAnswers waits until the server has all answers to its heartbeats. All connections
// have just spoken, so that it sends none for a while. It doesn't wait for longer than
// they are held, and leaves it to the next sample to say what is not known.
func (m *millionRunner) awaitAnswers(ctx context.Context) error {
	_, err := m.stats.await(ctx, m.workload.after()/2, func(c *MillionCounts) bool {
		sent, answered := m.record.beats(c, m.asked)
		return sent == answered
	})
	if ctx.Err() != nil {
		return err
	}
	return nil
}

// show says how far a phase is, where that is shown.
func (m *millionRunner) show(e load.Event) {
	i := e.Interval
	if i == nil {
		return
	}
	switch m.phase {
	case phaseConnect:
		m.tell(false, "%s: %s connections", m.phase, thousands(float64(i.Open)))
	case phaseCheck, phaseAgain:
		m.tell(false, "%s: %s lines are back", m.phase, thousands(float64(e.Snapshot.Answered)))
	default:
		m.tell(false, "%s: %s connections, for %v", m.phase, thousands(float64(i.Open)), time.Since(m.since).Round(time.Second))
	}
}

// tell tells of the run as it goes on.
func (m *millionRunner) tell(final bool, format string, args ...any) {
	m.progress.tell(final, m.subject.Name+": "+fmt.Sprintf(format, args...))
}
