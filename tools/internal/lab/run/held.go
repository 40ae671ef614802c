package run

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/tools/internal/lab/app"
	"github.com/myriad-go/myriad/tools/internal/lab/probe"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
	"github.com/myriad-go/myriad/tools/internal/sample"
	"github.com/myriad-go/myriad/tools/load"
)

const (
	// countTimeout and countTimeoutPerConn limit the wait until the server has accepted or closed connections.
	countTimeout        = 10 * time.Second
	countTimeoutPerConn = 200 * time.Microsecond
	// cleanupTimeout plus cleanupTimeoutPerConn per connection limits the wait for the release of resources.
	cleanupTimeout        = time.Second
	cleanupTimeoutPerConn = 30 * time.Microsecond
	// broadcastTimeout limits the wait for the broadcast on the connection that requested it.
	broadcastTimeout = 10 * time.Second
)

// heldConnsRun runs the phases of a run with long-open connections. Only the run's goroutine may use it.
type heldConnsRun struct {
	*serverMeasurement
	stage       scenario.Stage
	broadcaster net.Conn // connection that requested the broadcast in progress

	linesSent    int64  // number of verification lines
	currentPhase string // phase in progress
	phaseStart   time.Time
	lastSample   *result.Sample // sample of the previous phase
}

func (m *serverMeasurement) runHeldPhases(ctx context.Context) error {
	if m.admin == nil || !m.sampled {
		return errors.New("held connections require Linux and {admin} in the command")
	}
	stages, err := m.workload.SplitStagesAtConnects()
	if err != nil {
		return err
	}
	h := &heldConnsRun{serverMeasurement: m, stage: stages[0]}
	// The server must have counted the lab's first connection. Worker processes report their counts with a delay.
	if _, err := m.admin.pollCountersUntilOrTimeout(ctx, h.serverCountTimeout(), func(c *result.Counts) bool { return c.Accepted > 0 && c.Open == 0 }); err != nil {
		return err
	}
	h.forceGCIfOneProcess(ctx, firstGCRuns)
	if h.lastSample, err = h.recordSampleWithCounters(ctx, probe.Before); err != nil {
		return err
	}
	guarded, endGuard := cancelWhenMemoryLow(ctx)
	defer endGuard()
	h.currentPhase, h.phaseStart = probe.Connected, time.Now()
	config := m.loadConfigForStage(h.stage)
	seen, err := m.runLoadGenerator(guarded, config, func(e load.Event) error { return h.advancePhaseOnEvent(guarded, e) })
	endGuard()
	if h.broadcaster != nil {
		m.record.Broadcaster = awaitBroadcastOutcomeAndClose(h.broadcaster, time.Millisecond)
	}
	if err != nil {
		return err
	}
	open := h.lastSample.Counts.Open
	left, err := h.waitUntilOpenConnsAre(ctx, 0)
	if err != nil {
		return err
	}
	h.currentPhase = probe.Closed // also ends if the generator ended early
	return h.recordPhaseAndBegin(ctx, "", func(p *result.Phase) {
		p.Result = seen
		setPhaseCountAndRate(p, open-left)
		if first := m.record.FindPhase(probe.Connected); first != nil {
			first.Latency = seen.Connect
		}
	})
}

func (h *heldConnsRun) advancePhaseOnEvent(ctx context.Context, e load.Event) error {
	switch e.Phase {
	case load.Began:
		if e.Plan != nil && e.Plan.Generator != nil { // contains the generator's own figures before the first connection
			h.lastSample.Load.RSS, h.lastSample.Load.Anonymous = e.Plan.Generator.RSS, e.Plan.Generator.Anonymous
		}
		h.phaseStart = time.Now()
	case load.Connected:
		return h.awaitConnsAndEndConnectPhase(ctx, e.Snapshot.Open)
	case load.Checked:
		return h.endVerifyAndBeginNextPhase(ctx, e.Verification)
	case load.Progress:
		if i := e.Interval; i != nil {
			h.printSubjectProgress(false, "%s: %s connections, for %v", h.currentPhase, format.Count(i.Open), time.Since(h.phaseStart).Round(time.Second))
		}
		if h.currentPhase == probe.Alone && time.Since(h.phaseStart) >= h.stage.Phases[1].For.Std() {
			return h.endIdleAndRequestBroadcast(ctx)
		}
	case load.Heard:
		if b := e.Broadcast; b != nil && h.currentPhase == probe.Broadcast {
			return h.awaitBroadcastAndEndPhase(ctx, probe.Heartbeats, func(p *result.Phase) {
				setPhaseCountAndRate(p, b.Heard)
				p.Latency = b.After
			})
		}
	case load.Measured:
		return h.endPhaseAndBeginVerifyAgain(ctx)
	}
	return nil
}

// awaitConnsAndEndConnectPhase waits, at most for serverCountTimeout, until the server has wantOpen connections. It
// then ends the phase probe.Connected.
func (h *heldConnsRun) awaitConnsAndEndConnectPhase(ctx context.Context, wantOpen int64) error {
	if _, err := h.waitUntilOpenConnsAre(ctx, wantOpen); err != nil {
		return err
	}
	before := h.record.FindSample(probe.Before).Counts.Accepted
	return h.recordPhaseAndBegin(ctx, probe.Verified, func(p *result.Phase) { setPhaseCountAndRate(p, h.lastSample.Counts.Accepted-before) })
}

func (h *heldConnsRun) endVerifyAndBeginNextPhase(ctx context.Context, verification *load.Verification) error {
	if verification == nil {
		return errors.New("the load generator reported a verification without a result")
	}
	h.linesSent += verification.Asked
	next, over := probe.Alone, time.Now()
	after := h.stage.Phases[5].For.Std()
	if verification.Number > 1 {
		h.currentPhase, next = probe.VerifyAgain, probe.Closed
		// All connections have just sent data, so no heartbeat is due for a while. The server needs time to receive all
		// answers. An earlier sample would show some answers as missing.
		_, err := h.admin.pollCountersUntilOrTimeout(ctx, after/2, func(c *result.Counts) bool {
			sent, answered := probe.CountHeartbeatsAndAnswers(h.record, c, h.linesSent)
			return sent == answered || h.workload.App == app.WebSocket
		})
		if ctx.Err() != nil {
			return err
		}
	}
	err := h.recordPhaseAndBegin(ctx, next, func(p *result.Phase) {
		p.Count, p.Rate, p.Latency = verification.Checked, verification.CheckedPerSecond(), verification.Latency
	})
	if next == probe.Closed {
		h.phaseStart = over.Add(after)
	}
	return err
}

func (h *heldConnsRun) endIdleAndRequestBroadcast(ctx context.Context) (err error) {
	if err := h.recordPhaseAndBegin(ctx, probe.Broadcast, nil); err != nil {
		return err
	}
	h.broadcaster, err = dialAndRequestBroadcast(ctx, h.server.addr, h.workload.App)
	return err
}

func (h *heldConnsRun) awaitBroadcastAndEndPhase(ctx context.Context, nextPhase string, setFigures func(*result.Phase)) error {
	h.record.Broadcaster = awaitBroadcastOutcomeAndClose(h.broadcaster, broadcastTimeout)
	h.broadcaster = nil
	if _, err := h.waitUntilOpenConnsAre(ctx, h.lastSample.Counts.Open); err != nil {
		return err
	}
	return h.recordPhaseAndBegin(ctx, nextPhase, setFigures)
}

func (h *heldConnsRun) endPhaseAndBeginVerifyAgain(ctx context.Context) error {
	switch h.currentPhase {
	case probe.Alone: // the generator has reported no progress
		return h.recordPhaseAndBegin(ctx, probe.VerifyAgain, nil)
	case probe.Broadcast: // some connections have not received the broadcast
		return h.awaitBroadcastAndEndPhase(ctx, probe.VerifyAgain, nil)
	case probe.Heartbeats:
		before := h.lastSample.Counts.Heartbeats
		return h.recordPhaseAndBegin(ctx, probe.VerifyAgain, func(p *result.Phase) { setPhaseCountAndRate(p, h.lastSample.Counts.Heartbeats-before) })
	}
	return nil
}

// recordPhaseAndBegin takes a sample and records the current phase. If setFigures is not nil, it is called to set
// further figures of this phase. Then nextPhase becomes the current phase.
func (h *heldConnsRun) recordPhaseAndBegin(ctx context.Context, nextPhase string, setFigures func(*result.Phase)) error {
	p := result.Phase{Name: h.currentPhase, Took: max(time.Since(h.phaseStart), 0)}
	if h.currentPhase == probe.Alone {
		h.forceGCIfOneProcess(ctx, laterGCRuns) // sizes are computed from this sample and the first one
	}
	before := *h.lastSample
	now, err := h.recordSampleWithCounters(ctx, h.currentPhase)
	if err != nil {
		return err
	}
	h.lastSample = now
	if sampled := now.At.Sub(before.At); sampled > 0 {
		p.ServerCPU = float64(now.Server.CPU()-before.Server.CPU()) / float64(sampled)
		p.LoadCPU = float64(now.Load.CPU()-before.Load.CPU()) / float64(sampled)
	}
	if setFigures != nil {
		setFigures(&p)
	}
	h.record.Phases = append(h.record.Phases, p)
	h.printSubjectProgress(true, "%s: %.1fs, %s connections; %s, %s/s", p.Name, p.Took.Seconds(), format.Count(now.Counts.Open), format.Count(p.Count), format.Whole(p.Rate))
	h.currentPhase, h.phaseStart = nextPhase, time.Now()
	return nil
}

func setPhaseCountAndRate(p *result.Phase, n int64) {
	p.Count = n
	if p.Took > 0 {
		p.Rate = float64(n) / p.Took.Seconds()
	}
}

func (h *heldConnsRun) recordSampleWithCounters(ctx context.Context, checkpoint string) (*result.Sample, error) {
	c, err := h.admin.pollCountersUntilOrTimeout(ctx, countTimeout, func(*result.Counts) bool { return true })
	if err != nil {
		return nil, err
	}
	s, err := h.sampleServerGeneratorAndMachine(checkpoint, heldParts)
	if err != nil {
		return nil, err
	}
	s.Counts = &c
	return h.appendSampleToRecord(s), nil
}

func (h *heldConnsRun) forceGCIfOneProcess(ctx context.Context, times int) {
	if h.record.Processes < 2 {
		h.admin.forceServerGC(ctx, times)
	}
}

// waitUntilOpenConnsAre waits, at most for serverCountTimeout, until the server has the wanted number of open
// connections. It returns the last reported number. A timeout is not an error.
func (h *heldConnsRun) waitUntilOpenConnsAre(ctx context.Context, want int64) (open int64, _ error) {
	c, err := h.admin.pollCountersUntilOrTimeout(ctx, h.serverCountTimeout(), func(c *result.Counts) bool { return c.Open == want })
	return c.Open, err
}

func (h *heldConnsRun) serverCountTimeout() time.Duration {
	return countTimeout + countTimeoutPerConn*time.Duration(h.workload.Connections)
}

// sampleAfterReleaseOrTimeout takes a sample when the machine has released the run's resources, or after a timeout.
func (m *serverMeasurement) sampleAfterReleaseOrTimeout(ctx context.Context) error {
	bound := cleanupTimeout + cleanupTimeoutPerConn*time.Duration(m.workload.Connections)
	for began := time.Now(); ; {
		taken, err := sample.TakeSample(sample.MachineMemory | sample.Network)
		if err != nil {
			return err
		}
		s := result.Sample{Checkpoint: probe.Left, At: time.Now()}
		copyMachineFigures(&s, &taken.Machine)
		if probe.ResourceLeakScore(m.record, &s) == 0 || time.Since(began) > bound {
			m.record.Samples = append(m.record.Samples, s)
			return nil
		}
		if err := sleepContext(ctx, 10*pollInterval); err != nil {
			return err
		}
	}
}

func dialAndRequestBroadcast(ctx context.Context, addr, appName string) (net.Conn, error) {
	conn, err := dialWithoutTimeWait(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("cannot request the broadcast: %w", err)
	}
	_ = conn.SetDeadline(time.Now().Add(broadcastTimeout)) // Read returns the same error
	talk, err := app.ConnForLines(conn, appName)
	if err == nil {
		_, err = io.WriteString(talk, "!"+announcement+"\n")
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("cannot request the broadcast: %w", err)
	}
	return talk, nil
}

// awaitBroadcastOutcomeAndClose reads from the connection that requested the broadcast until the broadcast arrives, and
// then closes the connection. If the connection receives nothing for the duration of timeout,
// awaitBroadcastOutcomeAndClose stops waiting. If the broadcast has arrived, the field Error of the result is "".
func awaitBroadcastOutcomeAndClose(conn net.Conn, timeout time.Duration) *result.Broadcaster {
	defer conn.Close()
	seen := &result.Broadcaster{Messages: 1, Error: "it did not come"}
	lines := bufio.NewReaderSize(conn, 4096)
	for wait := timeout; ; {
		_ = conn.SetReadDeadline(time.Now().Add(wait)) // Read returns the same error
		line, err := lines.ReadSlice('\n')
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return seen
		case err != nil:
			if seen.Error != "" {
				seen.Error = err.Error()
			}
			return seen
		case string(line) == app.Heartbeat:
			seen.Heartbeats++
		case string(line) == announcement+"\n":
			seen.Error, wait = "", time.Millisecond
		default:
			seen.Error = fmt.Sprintf("the server said %.100q", line)
			return seen
		}
	}
}
