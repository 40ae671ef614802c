package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/myriad-go/myriad/doctor"
	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/internal/lab/scenario"
	"github.com/myriad-go/myriad/internal/procfs"
	"github.com/myriad-go/myriad/internal/sample"
)

const (
	// leastKept and keptShare are how much memory a run leaves: at least so many bytes, and
	// that part of all.
	leastKept = 256 << 20
	keptShare = 20
	// parkedBytes is more than a parked goroutine has ever taken.
	parkedBytes = 4 << 10
	// costlyBytes is what a connection is taken to need on each side where TLS or a server of
	// somebody else's has it: more than any that was seen.
	costlyBytes = 16 << 10
	// guardEvery is the time between two looks at the memory: at 30,000 connections a second
	// of 9 KB each, 27 MB are taken between them.
	guardEvery = 100 * time.Millisecond
)

// room is memory that can still be had, in bytes: what there is, of how much in all, and the
// limit of a control group that leaves the least, "" where that is the machine.
type room struct {
	free, total int64
	of          string
}

// kept is how much of the memory is to stay free.
func (r room) kept(asked int64) int64 {
	if asked > 0 {
		return asked
	}
	return max(leastKept, r.total/keptShare)
}

// in says where it is: nothing for the machine.
func (r room) in() string {
	if r.of == "" {
		return ""
	}
	return " in " + r.of
}

// readRoom reads what can be had on this machine by processes of this one's control groups.
// Of the machine it is what nothing uses, and half of the pages of files that can be dropped;
// MemAvailable would have much of what sockets hold in it.
func readRoom() (room, error) {
	s, err := sample.Take(sample.MachineMemory|sample.Cgroup, os.Getpid())
	if err != nil {
		return room{}, err
	}
	r := room{free: s.Machine.Free + s.Machine.FilePages/2, total: s.Machine.Total}
	if limit := s.Cgroup.Memory; limit.From != "" {
		r.total = min(r.total, limit.Max)
		if left := max(limit.Max-limit.Used, 0); left < r.free {
			r.free, r.of = left, limit.From
		}
	}
	return r, nil
}

// wall says why a run can't be made, "" if it can: the subject holds fewer connections, or the
// machine does. Nothing has been started.
func wall(s scenario.Step) string {
	w := s.Workload
	if most := s.Subject.MaxConns; w.Whole && most > 0 && w.Connections > most {
		return fmt.Sprintf("%s connections are more than the %s that it can hold: %s",
			format.Count(w.Connections), format.Count(most), s.Subject.Wall)
	}
	if w.Phase(scenario.Park) != nil {
		room, err := readRoom()
		if need := int64(w.Connections) * parkedBytes; err == nil && need > room.free-room.kept(w.KeepFree) {
			return fmt.Sprintf("memory: %s goroutines need up to %s; %s are free%s", format.Count(w.Connections), format.Bytes(float64(need)), format.Bytes(float64(room.free)), room.in())
		}
		return ""
	}
	n := w.For(s.Subject.MaxConns).Connections
	report, err := examine(s, n)
	if n < 1 || err != nil {
		return "" // or it fails
	}
	i := slices.IndexFunc(report.Walls, func(x doctor.Wall) bool {
		memory := x.Name == "memory" || x.Name == "cgroup-memory"
		return !x.Soft && x.Near(n) && !(memory && w.Phase(scenario.Broadcast) != nil) // which goes on with those that there are
	})
	if i < 0 {
		return ""
	}
	wall := &report.Walls[i]
	text := fmt.Sprintf("%s: %s stops %s connections at %s", wall.Name, wall.What, format.Count(n), format.Count(wall.Holds))
	if wall.Present != "" {
		text += "; it is " + wall.Present
	}
	if wall.Needs != "" {
		text += ", needs " + wall.Needs
	}
	return text + fmt.Sprintf("; `myriad doctor -n %d` says how to move it", n)
}

// examine has package doctor say how many connections of a step this machine holds, with both
// ends on it.
func examine(s scenario.Step, n int) (*doctor.Report, error) {
	facts, err := doctor.Read(0)
	if err != nil {
		return nil, err
	}
	plan := doctor.Plan{Connections: max(n, 1), Side: doctor.Both, Model: cmp.Or(s.Subject.Model(), "goroutine"), Processes: s.Subject.Processes(s.Workload)}
	if s.Subject.Model() == "" || s.Workload.TLS {
		plan.UserMemory = costlyBytes
	}
	return doctor.Examine(facts, plan)
}

// doctorLines is what package doctor says of connections before they are opened: how many
// this machine holds, and each wall that is below what is wanted.
func doctorLines(s scenario.Step) []string {
	n := s.Workload.Connections
	report, err := examine(s, n)
	if err != nil {
		return []string{fmt.Sprintf("the machine's walls are not known: %v", err)}
	}
	lines := []string{fmt.Sprintf("this machine holds %s connections of %s", format.Count(report.Holds), format.Count(n))}
	for i := range report.Walls {
		w := &report.Walls[i]
		if !w.Near(n) {
			continue
		}
		does := "stops them at"
		if w.Soft {
			does = "may hurt from"
		}
		lines = append(lines, fmt.Sprintf("%s is %s: %s %s connections", w.Name, w.Present, does, format.Count(w.Holds)))
	}
	return lines
}

// memoryGuard looks at the memory while connections are opened and held: with less than keep
// no more are opened, with less than half of it the run ends. It has a goroutine of its own,
// from begin to end.
type memoryGuard struct {
	keep int64        // bytes
	stop func() error // opens no more connections, nil where that can't be told
	over func(error)  // ends the run

	cancel  context.CancelFunc // nil before begin
	wait    sync.WaitGroup
	mu      sync.Mutex
	opening bool
	stopped string
}

func newMemoryGuard(w *scenario.Workload, over func(error), stop func() error) *memoryGuard {
	g := &memoryGuard{over: over, stop: stop}
	if r, err := readRoom(); err == nil {
		g.keep = r.kept(w.KeepFree)
	}
	return g
}

// begin begins to look, while connections are opened.
func (g *memoryGuard) begin() {
	ctx, cancel := context.WithCancel(context.Background())
	g.cancel, g.opening = cancel, true
	g.wait.Go(func() {
		for {
			room, err := readRoom()
			if errors.Is(err, procfs.ErrNotAvailable) {
				return
			}
			if err == nil { // or the next look tells
				err = g.look(room)
				if err != nil {
					g.over(err)
					return
				}
			}
			if pause(ctx, guardEvery) != nil {
				return
			}
		}
	})
}

// end ends the guard's goroutine and waits for it.
func (g *memoryGuard) end() {
	if g.cancel != nil {
		g.cancel()
		g.wait.Wait()
	}
}

// connected is when no more connections are opened. It says where memory ran low, "" if it
// did not.
func (g *memoryGuard) connected() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.opening = false
	return g.stopped
}

// look decides by what is free. An error says that nothing is to go on.
func (g *memoryGuard) look(r room) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.free >= g.keep {
		return nil
	}
	low := fmt.Sprintf("%s MB are free%s", format.Whole(float64(r.free)/1e6), r.in())
	keep := format.Whole(float64(g.keep) / 1e6)
	if g.opening && g.stop != nil && g.stopped == "" {
		g.stopped = fmt.Sprintf("%s, and %s MB are to stay free", low, keep)
		if err := g.stop(); err != nil {
			return fmt.Errorf("memory: only %s, and the load generator can't be told: %w", low, err)
		}
	}
	if r.free < g.keep/2 {
		return fmt.Errorf("memory: only %s, less than half of the %s MB that are to stay free", low, keep)
	}
	return nil
}
