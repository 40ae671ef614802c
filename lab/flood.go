package lab

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/load"
)

// This file has floods: every connection writes lines for as long as the server takes
// them, and reads what comes, as tcpkali does. How many answers there are is then the
// server's doing, and of answers nothing is known but how many bytes they have.
//
// So there is a check before it, on the same server: a few connections send lines, each
// of which has to be answered, as it should be, before they end. The lines are fewer than
// a server may hold back by the rule that it flushes every tenth: what it owes then, it
// owes for good. Before, and not after: what a server had not read of a flood outlives
// its connections, and kept some busy for 20 s.

// floodRules are those of Flood.
var floodRules = rules{
	check:    Workload.checkFlood,
	estimate: Workload.estimateFlood,
	judge:    judgeFlood,
	parts:    floodParts,
}

// floodMessage is the line of a flood, as published.
const floodMessage = shaMessage

// The check: so many connections, each with so many lines in flight, and no more.
const (
	checkConnections = 100
	checkLines       = 19
	// floodBuffer is SO_SNDBUF of the load's connections, in bytes: what they have sent
	// is to be the server's soon.
	floodBuffer = 16 << 10
	// floodHold is how long connections stay open when the window has ended: they are
	// counted meanwhile.
	floodHold = time.Second
	// checkDrain is how long an answer may not come.
	checkDrain = 2 * time.Second
	// maxConnectRate is the most new connections a second.
	maxConnectRate = 1_000_000
)

func (w Workload) checkFlood() error {
	switch {
	case w.App != Lines && w.App != Sha:
		return wrong("workload %s: app %q with kind %s; expected %s or %s", w.Name, w.App, Flood, Lines, Sha)
	case w.Connections < 1:
		return wrong("workload %s: %d connections; expected at least 1", w.Name, w.Connections)
	case w.Size != 0 || w.Pipeline > 1:
		return wrong("workload %s: a size or a pipeline with kind %s; expected none, its lines are %q", w.Name, Flood, floodMessage)
	case w.ConnectRate < 0 || w.ConnectRate > maxConnectRate:
		return wrong("workload %s: %d connections a second; expected 1 to %d, or 0 for as fast as they are taken", w.Name, w.ConnectRate, maxConnectRate)
	case w.WarmUp < 0 || w.WarmUp > maxDuration:
		return wrong("workload %s: warm-up %v; expected 0 to %v", w.Name, w.WarmUp, maxDuration)
	case w.Duration < minDuration || w.Duration > maxDuration:
		return wrong("workload %s: duration %v; expected %v to %v", w.Name, w.Duration, minDuration, maxDuration)
	}
	return nil
}

// estimateFlood is how long one run takes, starting and stopping included.
func (w Workload) estimateFlood() time.Duration {
	const around, each = time.Second, 150 * time.Microsecond // the check, opening and closing
	dial := time.Duration(w.Connections) * each
	if w.ConnectRate > 0 {
		dial += time.Duration(w.Connections) * time.Second / time.Duration(w.ConnectRate)
	}
	return w.WarmUp + w.Duration + floodHold + dial + around
}

// floodFlags are the flags and the argument of the load generator.
func (w Workload) floodFlags(addr string) []string {
	flags := []string{"--flood", "--message", floodMessage, "--sndbuf", strconv.Itoa(floodBuffer), "--connections", strconv.Itoa(w.Connections)}
	if w.ConnectRate > 0 {
		flags = append(flags, "--connect-rate", strconv.Itoa(w.ConnectRate))
	}
	return append(flags, "--warmup", w.WarmUp.String(), "--duration", w.Duration.String(), "--hold-after", floodHold.String(), addr)
}

// beforeFlood is the check as a workload of its own.
func (w Workload) beforeFlood() Workload {
	return Workload{Name: w.Name, Kind: Throughput, App: w.App, Connections: min(checkConnections, w.Connections), Pipeline: checkLines}
}

// checkFlags are the flags and the argument of the load generator for the check.
func (w Workload) checkFlags(addr string) []string {
	check, lines := w.beforeFlood(), strconv.Itoa(checkLines)
	flags := []string{"--connections", strconv.Itoa(check.Connections), "--pipeline", lines, "--messages", lines, "--drain", checkDrain.String()}
	if load := apps[w.App].load; load != nil {
		return append(append(flags, load...), addr)
	}
	return append(flags, "--message", floodMessage, addr)
}

// flood applies a Flood workload.
func (m *measurement) flood(ctx context.Context) error {
	defer m.captures.end()
	check, err := m.generate(ctx, m.loadCommand(m.workload.checkFlags(m.server.addr)), nil)
	if err != nil {
		return fmt.Errorf("the check before the flood: %w", err)
	}
	m.record.Flood = &FloodFigures{Check: check}
	m.record.Load = m.loadCommand(m.workload.floodFlags(m.server.addr))
	m.record.Result, err = m.generate(ctx, m.record.Load, func(e load.Event) error {
		switch e.Phase {
		case load.Measuring:
			err := m.sampleFlood(Measuring)
			m.captures.begin(ctx)
			return err
		case load.Measured:
			return m.sampleFlood(Measured)
		}
		return nil
	})
	return err
}

// sampleFlood takes a sample, with the segments of the server's connections.
func (m *measurement) sampleFlood(moment Moment) error {
	if err := m.sample(moment, cpu|memory); err != nil || !m.sampled {
		return err
	}
	if found, err := sock.SegmentsOf(m.port(), m.workload.Connections+room); err == nil { // or the kernel does not tell
		s := &m.record.Samples[len(m.record.Samples)-1]
		s.Accepted, s.SegmentsIn, s.SegmentsOut = found.Sockets, found.In, found.Out
	}
	return nil
}
