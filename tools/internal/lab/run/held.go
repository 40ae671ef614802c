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
	// countBound, and countEach for each connection, is how long the server may take to
	// have accepted, or closed, what the generator has opened, or closed. With 28 other
	// processes that wanted two processors it closed 11,000 a second.
	countBound = 10 * time.Second
	countEach  = 200 * time.Microsecond
	// leftBound, and leftEach for each connection, is how long the machine may take to be
	// as it was.
	leftBound = time.Second
	leftEach  = 30 * time.Microsecond
	// broadcastBound bounds the waiting for the broadcast when all others have it.
	broadcastBound = 10 * time.Second
)

// holder takes a server through the phases of connections that are held. It belongs to the
// run's goroutine. Phases follow each other without a gap. All but the last end with an event
// of the generator, which does not go on while one is looked at for long; so nothing else
// takes care of time, and a phase is up to an interval of the generator longer than it was to
// be.
type holder struct {
	*measurement
	stage       scenario.Stage
	broadcaster net.Conn // asked for the broadcast that is under way

	asked int64  // lines that were sent to be verified
	phase string // under way
	since time.Time
	last  *result.Sample // of the phase before
}

// hold holds the connections, from the first to the last.
func (m *measurement) hold(ctx context.Context) error {
	if m.admin == nil || !m.sampled {
		return errors.New("connections are held and counted with {admin} in the command, on Linux; expected both")
	}
	stages, err := m.workload.Stages()
	if err != nil {
		return err
	}
	h := &holder{measurement: m, stage: stages[0]}
	// The lab's first connection has to be counted: the counts of worker processes come a
	// moment later.
	if _, err := m.admin.await(ctx, h.countBound(), func(c *result.Counts) bool { return c.Accepted > 0 && c.Open == 0 }); err != nil {
		return err
	}
	h.collect(ctx, firstCollections)
	if h.last, err = h.checkpoint(ctx, probe.Before); err != nil {
		return err
	}
	guarded, endGuard := guardMemory(ctx)
	defer endGuard()
	h.phase, h.since = probe.Connected, time.Now()
	config := m.config(h.stage)
	seen, err := m.generate(guarded, config, func(e load.Event) error { return h.at(guarded, e) })
	endGuard()
	if h.broadcaster != nil {
		m.record.Broadcaster = endBroadcaster(h.broadcaster, time.Millisecond)
	}
	if err != nil {
		return err
	}
	open := h.last.Counts.Open
	left, err := h.awaitOpen(ctx, 0)
	if err != nil {
		return err
	}
	h.phase = probe.Closed // also where the generator has ended before its time
	return h.end(ctx, "", func(p *result.Phase) {
		p.Result = seen
		setCount(p, open-left)
		if first := m.record.Phase(probe.Connected); first != nil {
			first.Latency = seen.Connect
		}
	})
}

// at takes an event of the generator.
func (h *holder) at(ctx context.Context, e load.Event) error {
	switch e.Phase {
	case load.Began:
		if e.Plan != nil && e.Plan.Generator != nil { // it says itself what it had before the first
			h.last.Load.RSS, h.last.Load.Anonymous = e.Plan.Generator.RSS, e.Plan.Generator.Anonymous
		}
		h.since = time.Now()
	case load.Connected:
		return h.connected(ctx, e.Snapshot.Open)
	case load.Checked:
		return h.verified(ctx, e.Verification)
	case load.Progress:
		if i := e.Interval; i != nil {
			h.tell(false, "%s: %s connections, for %v", h.phase, format.Count(i.Open), time.Since(h.since).Round(time.Second))
		}
		if h.phase == probe.Alone && time.Since(h.since) >= h.stage.Phases[1].For.Std() {
			return h.broadcast(ctx)
		}
	case load.Heard:
		if b := e.Broadcast; b != nil && h.phase == probe.Broadcast {
			return h.endBroadcast(ctx, probe.Heartbeats, func(p *result.Phase) {
				setCount(p, b.Heard)
				p.Latency = b.After
			})
		}
	case load.Measured:
		return h.released(ctx)
	}
	return nil
}

// connected is when no more connections are opened: the server is to have so many.
func (h *holder) connected(ctx context.Context, open int64) error {
	if _, err := h.awaitOpen(ctx, open); err != nil {
		return err
	}
	before := h.record.Sample(probe.Before).Counts.Accepted
	return h.end(ctx, probe.Verified, func(p *result.Phase) { setCount(p, h.last.Counts.Accepted-before) })
}

// verified is when all lines are back, or given up.
func (h *holder) verified(ctx context.Context, call *load.Verification) error {
	if call == nil {
		return errors.New("the load generator reported a verification without its result")
	}
	h.asked += call.Asked
	next, over := probe.Alone, time.Now()
	after := h.stage.Phases[5].For.Std()
	if call.Number > 1 {
		h.phase, next = probe.VerifyAgain, probe.Closed
		// All connections have just spoken, so that the server sends no heartbeat for a
		// while: it may have the answers to all. It is left to the sample to say what is
		// not known.
		_, err := h.admin.await(ctx, after/2, func(c *result.Counts) bool {
			sent, answered := probe.Beats(h.record, c, h.asked)
			return sent == answered || h.workload.App == app.WebSocket
		})
		if ctx.Err() != nil {
			return err
		}
	}
	err := h.end(ctx, next, func(p *result.Phase) { p.Count, p.Rate, p.Latency = call.Checked, call.Rate(), call.Latency })
	if next == probe.Closed {
		h.since = over.Add(after)
	}
	return err
}

// broadcast ends the time in which connections were left alone, with a line to all.
func (h *holder) broadcast(ctx context.Context) (err error) {
	if err := h.end(ctx, probe.Broadcast, nil); err != nil {
		return err
	}
	h.broadcaster, err = startBroadcast(ctx, h.server.addr, h.workload.App)
	return err
}

// endBroadcast lets go of the connection that has asked for it.
func (h *holder) endBroadcast(ctx context.Context, next string, fill func(*result.Phase)) error {
	h.record.Broadcaster = endBroadcaster(h.broadcaster, broadcastBound)
	h.broadcaster = nil
	if _, err := h.awaitOpen(ctx, h.last.Counts.Open); err != nil {
		return err
	}
	return h.end(ctx, next, fill)
}

// released is when the connections were held for as long as they were to be.
func (h *holder) released(ctx context.Context) error {
	switch h.phase {
	case probe.Alone: // the generator has reported no progress
		return h.end(ctx, probe.VerifyAgain, nil)
	case probe.Broadcast: // not all have heard it
		return h.endBroadcast(ctx, probe.VerifyAgain, nil)
	case probe.Heartbeats:
		before := h.last.Counts.Heartbeats
		return h.end(ctx, probe.VerifyAgain, func(p *result.Phase) { setCount(p, h.last.Counts.Heartbeats-before) })
	}
	return nil
}

// end ends the phase under way with a sample and begins another one. fill, which may be nil,
// finds the time in the phase and the sample in last.
func (h *holder) end(ctx context.Context, next string, fill func(*result.Phase)) error {
	p := result.Phase{Name: h.phase, Took: max(time.Since(h.since), 0)}
	if h.phase == probe.Alone {
		h.collect(ctx, laterCollections) // sizes are of this sample, and the first
	}
	before := *h.last
	now, err := h.checkpoint(ctx, h.phase)
	if err != nil {
		return err
	}
	h.last = now
	if sampled := now.At.Sub(before.At); sampled > 0 {
		p.ServerCPU = float64(now.Server.CPU()-before.Server.CPU()) / float64(sampled)
		p.LoadCPU = float64(now.Load.CPU()-before.Load.CPU()) / float64(sampled)
	}
	if fill != nil {
		fill(&p)
	}
	h.record.Phases = append(h.record.Phases, p)
	h.tell(true, "%s: %.1fs, %s connections; %s, %s/s", p.Name, p.Took.Seconds(), format.Count(now.Counts.Open), format.Count(p.Count), format.Whole(p.Rate))
	h.phase, h.since = next, time.Now()
	return nil
}

// setCount is what a phase is about, with its rate.
func setCount(p *result.Phase, n int64) {
	p.Count = n
	if p.Took > 0 {
		p.Rate = float64(n) / p.Took.Seconds()
	}
}

// checkpoint samples everything.
func (h *holder) checkpoint(ctx context.Context, name string) (*result.Sample, error) {
	c, err := h.admin.await(ctx, countBound, func(*result.Counts) bool { return true })
	if err != nil {
		return nil, err
	}
	s, err := h.take(name, heldParts)
	if err != nil {
		return nil, err
	}
	s.Counts = &c
	return h.keep(s), nil
}

// collect has a server of one process collect its garbage: of several only the one that shows
// figures would.
func (h *holder) collect(ctx context.Context, times int) {
	if h.record.Processes < 2 {
		h.admin.collect(ctx, times)
	}
}

// awaitOpen waits until the server has so many connections, but not for ever, and says how
// many it has.
func (h *holder) awaitOpen(ctx context.Context, want int64) (int64, error) {
	c, err := h.admin.await(ctx, h.countBound(), func(c *result.Counts) bool { return c.Open == want })
	return c.Open, err
}

func (h *holder) countBound() time.Duration {
	return countBound + countEach*time.Duration(h.workload.Connections)
}

// left waits until the machine is as it was before the first connection, but not for long.
func (m *measurement) left(ctx context.Context) error {
	bound := leftBound + leftEach*time.Duration(m.workload.Connections)
	for began := time.Now(); ; {
		taken, err := sample.Take(sample.MachineMemory | sample.Network)
		if err != nil {
			return err
		}
		s := result.Sample{Checkpoint: probe.Left, At: time.Now()}
		fillMachine(&s, &taken.Machine)
		if probe.Excess(m.record, &s) == 0 || time.Since(began) > bound {
			m.record.Samples = append(m.record.Samples, s)
			return nil
		}
		if err := pause(ctx, 10*poll); err != nil {
			return err
		}
	}
}

// startBroadcast connects and asks the server for a broadcast over that connection.
func startBroadcast(ctx context.Context, addr, name string) (net.Conn, error) {
	conn, err := dialTraceless(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("asking for the broadcast: %w", err)
	}
	_ = conn.SetDeadline(time.Now().Add(broadcastBound)) // an error is Read's, too
	talk, err := app.Dialogue(conn, name)
	if err == nil {
		_, err = io.WriteString(talk, "!"+announcement+"\n")
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("asking for the broadcast: %w", err)
	}
	return talk, nil
}

// endBroadcaster awaits the broadcast on the connection that has asked for it, for a time,
// reads what else has come, and closes it.
func endBroadcaster(conn net.Conn, bound time.Duration) *result.Broadcaster {
	defer conn.Close()
	seen := &result.Broadcaster{Messages: 1, Error: "it did not come"}
	lines := bufio.NewReaderSize(conn, 4096)
	for wait := bound; ; {
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
