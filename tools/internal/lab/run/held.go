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
	// countTimeout, and countTimeoutPerConn for each connection, is how long the server may take to
	// have accepted, or closed, what the generator has opened, or closed. With 28 other
	// processes that wanted two processors it closed 11,000 a second.
	countTimeout        = 10 * time.Second
	countTimeoutPerConn = 200 * time.Microsecond
	// cleanupTimeout, and cleanupTimeoutPerConn for each connection, is how long the machine may take to be
	// as it was.
	cleanupTimeout        = time.Second
	cleanupTimeoutPerConn = 30 * time.Microsecond
	// broadcastTimeout bounds the waiting for the broadcast when all others have it.
	broadcastTimeout = 10 * time.Second
)

// heldConnsRun takes a server through the phases of connections that are held. It belongs to the
// run's goroutine. Phases follow each other without a gap. All but the last end with an event
// of the generator, which does not go on while one is looked at for long; so nothing else
// takes care of time, and a phase is up to an interval of the generator longer than it was to
// be.
type heldConnsRun struct {
	*measurement
	stage       scenario.Stage
	broadcaster net.Conn // asked for the broadcast that is under way

	linesSent    int64  // lines that were sent to be verified
	currentPhase string // under way
	phaseStart   time.Time
	lastSample   *result.Sample // of the phase before
}

// runHeldPhases holds the connections, from the first to the last.
func (m *measurement) runHeldPhases(ctx context.Context) error {
	if m.admin == nil || !m.sampled {
		return errors.New("connections are held and counted with {admin} in the command, on Linux; expected both")
	}
	stages, err := m.workload.SplitStages()
	if err != nil {
		return err
	}
	h := &heldConnsRun{measurement: m, stage: stages[0]}
	// The lab's first connection has to be counted: the counts of worker processes come a
	// moment later.
	if _, err := m.admin.waitForCounters(ctx, h.countTimeout(), func(c *result.Counts) bool { return c.Accepted > 0 && c.Open == 0 }); err != nil {
		return err
	}
	h.forceServerGC(ctx, firstGCRuns)
	if h.lastSample, err = h.sampleCheckpoint(ctx, probe.Before); err != nil {
		return err
	}
	guarded, endGuard := startMemoryGuard(ctx)
	defer endGuard()
	h.currentPhase, h.phaseStart = probe.Connected, time.Now()
	config := m.loadConfig(h.stage)
	seen, err := m.runLoadGenerator(guarded, config, func(e load.Event) error { return h.handleEvent(guarded, e) })
	endGuard()
	if h.broadcaster != nil {
		m.record.Broadcaster = awaitOwnBroadcast(h.broadcaster, time.Millisecond)
	}
	if err != nil {
		return err
	}
	open := h.lastSample.Counts.Open
	left, err := h.waitForOpenConns(ctx, 0)
	if err != nil {
		return err
	}
	h.currentPhase = probe.Closed // also where the generator has ended before its time
	return h.endPhase(ctx, "", func(p *result.Phase) {
		p.Result = seen
		setPhaseCount(p, open-left)
		if first := m.record.FindPhase(probe.Connected); first != nil {
			first.Latency = seen.Connect
		}
	})
}

// handleEvent takes an event of the generator.
func (h *heldConnsRun) handleEvent(ctx context.Context, e load.Event) error {
	switch e.Phase {
	case load.Began:
		if e.Plan != nil && e.Plan.Generator != nil { // it says itself what it had before the first
			h.lastSample.Load.RSS, h.lastSample.Load.Anonymous = e.Plan.Generator.RSS, e.Plan.Generator.Anonymous
		}
		h.phaseStart = time.Now()
	case load.Connected:
		return h.endConnectPhase(ctx, e.Snapshot.Open)
	case load.Checked:
		return h.endVerifyPhase(ctx, e.Verification)
	case load.Progress:
		if i := e.Interval; i != nil {
			h.printProgress(false, "%s: %s connections, for %v", h.currentPhase, format.Count(i.Open), time.Since(h.phaseStart).Round(time.Second))
		}
		if h.currentPhase == probe.Alone && time.Since(h.phaseStart) >= h.stage.Phases[1].For.Std() {
			return h.startBroadcastPhase(ctx)
		}
	case load.Heard:
		if b := e.Broadcast; b != nil && h.currentPhase == probe.Broadcast {
			return h.endBroadcastPhase(ctx, probe.Heartbeats, func(p *result.Phase) {
				setPhaseCount(p, b.Heard)
				p.Latency = b.After
			})
		}
	case load.Measured:
		return h.endHoldPhase(ctx)
	}
	return nil
}

// endConnectPhase is when no more connections are opened: the server is to have so many.
func (h *heldConnsRun) endConnectPhase(ctx context.Context, open int64) error {
	if _, err := h.waitForOpenConns(ctx, open); err != nil {
		return err
	}
	before := h.record.FindSample(probe.Before).Counts.Accepted
	return h.endPhase(ctx, probe.Verified, func(p *result.Phase) { setPhaseCount(p, h.lastSample.Counts.Accepted-before) })
}

// endVerifyPhase is when all lines are back, or given up.
func (h *heldConnsRun) endVerifyPhase(ctx context.Context, verification *load.Verification) error {
	if verification == nil {
		return errors.New("the load generator reported a verification without its result")
	}
	h.linesSent += verification.Asked
	next, over := probe.Alone, time.Now()
	after := h.stage.Phases[5].For.Std()
	if verification.Number > 1 {
		h.currentPhase, next = probe.VerifyAgain, probe.Closed
		// All connections have just spoken, so that the server sends no heartbeat for a
		// while: it may have the answers to all. It is left to the sample to say what is
		// not known.
		_, err := h.admin.waitForCounters(ctx, after/2, func(c *result.Counts) bool {
			sent, answered := probe.CountHeartbeats(h.record, c, h.linesSent)
			return sent == answered || h.workload.App == app.WebSocket
		})
		if ctx.Err() != nil {
			return err
		}
	}
	err := h.endPhase(ctx, next, func(p *result.Phase) {
		p.Count, p.Rate, p.Latency = verification.Checked, verification.Rate(), verification.Latency
	})
	if next == probe.Closed {
		h.phaseStart = over.Add(after)
	}
	return err
}

// startBroadcastPhase ends the time in which connections were left alone, with a line to all.
func (h *heldConnsRun) startBroadcastPhase(ctx context.Context) (err error) {
	if err := h.endPhase(ctx, probe.Broadcast, nil); err != nil {
		return err
	}
	h.broadcaster, err = requestBroadcast(ctx, h.server.addr, h.workload.App)
	return err
}

// endBroadcastPhase lets go of the connection that has asked for it.
func (h *heldConnsRun) endBroadcastPhase(ctx context.Context, next string, fill func(*result.Phase)) error {
	h.record.Broadcaster = awaitOwnBroadcast(h.broadcaster, broadcastTimeout)
	h.broadcaster = nil
	if _, err := h.waitForOpenConns(ctx, h.lastSample.Counts.Open); err != nil {
		return err
	}
	return h.endPhase(ctx, next, fill)
}

// endHoldPhase is when the connections were held for as long as they were to be.
func (h *heldConnsRun) endHoldPhase(ctx context.Context) error {
	switch h.currentPhase {
	case probe.Alone: // the generator has reported no progress
		return h.endPhase(ctx, probe.VerifyAgain, nil)
	case probe.Broadcast: // not all have heard it
		return h.endBroadcastPhase(ctx, probe.VerifyAgain, nil)
	case probe.Heartbeats:
		before := h.lastSample.Counts.Heartbeats
		return h.endPhase(ctx, probe.VerifyAgain, func(p *result.Phase) { setPhaseCount(p, h.lastSample.Counts.Heartbeats-before) })
	}
	return nil
}

// endPhase ends the phase under way with a sample and begins another one. fill, which may be nil,
// finds the time in the phase and the sample in last.
func (h *heldConnsRun) endPhase(ctx context.Context, next string, fill func(*result.Phase)) error {
	p := result.Phase{Name: h.currentPhase, Took: max(time.Since(h.phaseStart), 0)}
	if h.currentPhase == probe.Alone {
		h.forceServerGC(ctx, laterGCRuns) // sizes are of this sample, and the first
	}
	before := *h.lastSample
	now, err := h.sampleCheckpoint(ctx, h.currentPhase)
	if err != nil {
		return err
	}
	h.lastSample = now
	if sampled := now.At.Sub(before.At); sampled > 0 {
		p.ServerCPU = float64(now.Server.CPU()-before.Server.CPU()) / float64(sampled)
		p.LoadCPU = float64(now.Load.CPU()-before.Load.CPU()) / float64(sampled)
	}
	if fill != nil {
		fill(&p)
	}
	h.record.Phases = append(h.record.Phases, p)
	h.printProgress(true, "%s: %.1fs, %s connections; %s, %s/s", p.Name, p.Took.Seconds(), format.Count(now.Counts.Open), format.Count(p.Count), format.Whole(p.Rate))
	h.currentPhase, h.phaseStart = next, time.Now()
	return nil
}

// setPhaseCount is what a phase is about, with its rate.
func setPhaseCount(p *result.Phase, n int64) {
	p.Count = n
	if p.Took > 0 {
		p.Rate = float64(n) / p.Took.Seconds()
	}
}

// sampleCheckpoint samples everything.
func (h *heldConnsRun) sampleCheckpoint(ctx context.Context, name string) (*result.Sample, error) {
	c, err := h.admin.waitForCounters(ctx, countTimeout, func(*result.Counts) bool { return true })
	if err != nil {
		return nil, err
	}
	s, err := h.takeSample(name, heldParts)
	if err != nil {
		return nil, err
	}
	s.Counts = &c
	return h.recordSample(s), nil
}

// forceServerGC has a server of one process collect its garbage: of several only the one that shows
// figures would.
func (h *heldConnsRun) forceServerGC(ctx context.Context, times int) {
	if h.record.Processes < 2 {
		h.admin.forceServerGC(ctx, times)
	}
}

// waitForOpenConns waits until the server has so many connections, but not for ever, and says how
// many it has.
func (h *heldConnsRun) waitForOpenConns(ctx context.Context, want int64) (int64, error) {
	c, err := h.admin.waitForCounters(ctx, h.countTimeout(), func(c *result.Counts) bool { return c.Open == want })
	return c.Open, err
}

func (h *heldConnsRun) countTimeout() time.Duration {
	return countTimeout + countTimeoutPerConn*time.Duration(h.workload.Connections)
}

// waitForCleanMachine waits until the machine is as it was before the first connection, but not for long.
func (m *measurement) waitForCleanMachine(ctx context.Context) error {
	bound := cleanupTimeout + cleanupTimeoutPerConn*time.Duration(m.workload.Connections)
	for began := time.Now(); ; {
		taken, err := sample.Take(sample.MachineMemory | sample.Network)
		if err != nil {
			return err
		}
		s := result.Sample{Checkpoint: probe.Left, At: time.Now()}
		setMachineFields(&s, &taken.Machine)
		if probe.LeftoverResources(m.record, &s) == 0 || time.Since(began) > bound {
			m.record.Samples = append(m.record.Samples, s)
			return nil
		}
		if err := sleepContext(ctx, 10*pollInterval); err != nil {
			return err
		}
	}
}

// requestBroadcast connects and asks the server for a broadcast over that connection.
func requestBroadcast(ctx context.Context, addr, appName string) (net.Conn, error) {
	conn, err := dialWithoutTimeWait(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("asking for the broadcast: %w", err)
	}
	_ = conn.SetDeadline(time.Now().Add(broadcastTimeout)) // an error is Read's, too
	talk, err := app.LineConn(conn, appName)
	if err == nil {
		_, err = io.WriteString(talk, "!"+announcement+"\n")
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("asking for the broadcast: %w", err)
	}
	return talk, nil
}

// awaitOwnBroadcast awaits the broadcast on the connection that has asked for it, for a time,
// reads what else has come, and closes it.
func awaitOwnBroadcast(conn net.Conn, timeout time.Duration) *result.Broadcaster {
	defer conn.Close()
	seen := &result.Broadcaster{Messages: 1, Error: "it did not come"}
	lines := bufio.NewReaderSize(conn, 4096)
	for wait := timeout; ; {
		_ = conn.SetReadDeadline(time.Now().Add(wait)) // an error is Read's, too
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
