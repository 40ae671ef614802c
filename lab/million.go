package lab

import (
	"context"
	"fmt"
	"time"
)

// The workloads of kind Holding open Workload.Connections connections to a server of this
// machine, and hold them: every connection is checked, gets heartbeats and a broadcast, is
// checked again and closed. Connections, heartbeats and their answers are counted by the
// server, which has {admin} in its command, echoes lines, and sends a line to all
// connections when one of them sends "!" and that line, as "myriad serve --app push" does.
//
// Workload.Hold is for how long connections are to be held with heartbeats, from 100 ms
// to 24 h, and Workload.Interval the time between two of a connection, from 100 ms to
// Hold. It takes longer than Hold by what heartbeats come late. Before memory runs out no
// more connections are opened, and the run goes on with those that there are; the report
// says where that was.

// MillionLoad says more of a workload of kind Holding.
type MillionLoad struct {
	// LoadLoops is how many event loops the generator has, up to 1,024. Default 0: as
	// many as the connections take.
	LoadLoops int `json:"load_loops,omitempty" toml:"load_loops"`
	// InFlight is how many connections at most wait for the answer to their check
	// at a time, 1 to 1,048,576. Default 1,000.
	InFlight int `json:"in_flight,omitempty" toml:"in_flight"`
	// KeepFree is how many bytes of memory are to stay free, 1 or more: with less no
	// more connections are opened, and with half of it the run ends. Free is what
	// nothing uses of the machine's, and half of the pages of files that can be
	// dropped, or what a cgroup has left if that is less. Default: the twentieth part
	// of the memory, but 1 GiB at least.
	KeepFree int64 `json:"keep_free,omitempty" toml:"keep_free"`
	// Strict has a run fail, too, that misses the sizes and rates of its findings.
	Strict bool `json:"strict,omitempty" toml:"strict"`
}

const (
	maxHeldConns = 64 << 20
	maxHeldLoops = 1024
	maxInFlight  = 1 << 20
	minKeepFree  = 1 << 30
)

var holdingRules = rules{
	check: checkHolding,
	estimate: func(w Workload) time.Duration {
		const each = 4 * 50 * time.Microsecond // connect, two checks, a broadcast: 20,000 connections a second
		return w.held() + time.Duration(w.Connections)*each + time.Second
	},
	bound: func(w Workload) time.Duration { return 5*w.estimate() + time.Minute },
	run: func(ctx context.Context, r *runner, s step, rec *RunRecord) error {
		return newMillionRunner(r, s, rec).run(ctx)
	},
	judge:   inRun,
	partial: true,
	parts:   holdingParts,
}

// filled is the load with its defaults.
func (m MillionLoad) filled() MillionLoad {
	if m.InFlight == 0 {
		m.InFlight = 1000
	}
	if m.KeepFree == 0 {
		m.KeepFree = memoryRoom{total: thisMachine().Memory}.kept(minKeepFree)
	}
	return m
}

// million is the part of a workload's settings that only kind Holding has.
func (w Workload) million() MillionLoad {
	if w.Million == nil {
		return MillionLoad{}.filled()
	}
	return w.Million.filled()
}

// checkHolding is the check of a workload of kind Holding.
func checkHolding(w Workload) error {
	bad := func(format string, args ...any) error {
		return wrong("workload %s: %s", w.Name, fmt.Sprintf(format, args...))
	}
	m := w.million()
	switch {
	case w.Connections < 1 || w.Connections > maxHeldConns:
		return bad("%d connections; expected 1 to %d", w.Connections, maxHeldConns)
	case w.Hold < minHeartbeat || w.Hold > maxDuration:
		return bad("a hold of %v; expected %v to %v", w.Hold, minHeartbeat, maxDuration)
	case w.Interval < minHeartbeat || w.Interval > w.Hold:
		return bad("a heartbeat each %v; expected %v to %v, the hold", w.Interval, minHeartbeat, w.Hold)
	case m.LoadLoops < 0 || m.LoadLoops > maxHeldLoops:
		return bad("%d loops of the generator; expected 0 (as many as it takes) to %d", m.LoadLoops, maxHeldLoops)
	case m.InFlight < 1 || m.InFlight > maxInFlight:
		return bad("%d checks in flight; expected 1 to %d", m.InFlight, maxInFlight)
	case m.KeepFree < 0:
		return bad("%d bytes to stay free; expected 1 or more", m.KeepFree)
	}
	return nil
}

// heldFor changes for how long a workload of kind Holding holds connections, and the time
// between two heartbeats with it, so that there are as many.
func (w *Workload) heldFor(hold time.Duration) {
	if w.Hold > 0 {
		w.Interval = time.Duration(float64(w.Interval) * float64(hold) / float64(w.Hold))
	}
	w.Interval, w.Hold = max(w.Interval, minHeartbeat), hold
}

// due is how many heartbeats each connection gets at least, and held how long that
// takes: a server looks at each connection in an eighth of the time, or in 400 ms.
func (w Workload) due() int { return int(w.Hold / w.Interval) }

func (w Workload) held() time.Duration {
	late := max(w.Interval/8, 400*time.Millisecond)
	return time.Duration(w.due())*(w.Interval+late) + late // and as much for the answers
}

// millionGrace is how long a process may take to end: it may have a million
// connections to close.
const millionGrace = time.Minute
