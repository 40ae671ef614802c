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
	"github.com/myriad-go/myriad/internal/lab/result"
	"github.com/myriad-go/myriad/internal/lab/scenario"
	"github.com/myriad-go/myriad/internal/procfs"
	"github.com/myriad-go/myriad/internal/sample"
)

const (
	// leastKept and keptShare are how much memory a run leaves: at least so many bytes, and
	// that part of all.
	leastKept = 256 << 20
	keptShare = 20
	// firstGuess is what a connection is taken to need before any was measured, both ends
	// and the buffer of a server that has one; parkedGuess is the same for a goroutine. Both
	// are above everything that was seen, in bytes.
	firstGuess  = 20 << 10
	parkedGuess = 4 << 10
	// growth is what is planned beside for the load generator and for what grows faster
	// than connections do.
	growth = 1.10
	// negligible is how much memory may be asked for whatever is free, in bytes.
	negligible = 64 << 20
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

// wall says why a run can't be made, "" if it can: that the subject holds fewer connections,
// that the machine does, or that memory would run out. Nothing has been started. It looks at
// the runs before it.
func (r *runner) wall(s scenario.Step, before []result.Run) string {
	w := s.Workload
	if most := s.Subject.MaxConns; w.Whole && most > 0 && w.Connections > most {
		return fmt.Sprintf("%s connections are more than the %s that it can hold: %s",
			format.Count(w.Connections), format.Count(most), s.Subject.Wall)
	}
	n := w.For(s.Subject.MaxConns).Connections
	if w.Phase(scenario.Park) == nil {
		if text := r.machineWall(s, n); text != "" {
			return text
		}
	}
	if w.Phase(scenario.Broadcast) != nil { // goes on with those that there are
		return ""
	}
	room, err := readRoom()
	if err != nil {
		return "" // nobody knows
	}
	each, from := needs(s, before)
	need, keep := int64(each*float64(n)), room.kept(w.KeepFree)
	if need <= negligible || need <= room.free-keep {
		return ""
	}
	return fmt.Sprintf("memory: %s of %s bytes each, by %s, need %s; %s are free%s, of which %s are kept",
		format.Count(n), format.Whole(each), from, format.Bytes(float64(need)), format.Bytes(float64(room.free)), room.in(), format.Bytes(float64(keep)))
}

// machineWall says which wall of the machine stops a run, "" for none. Both ends of its
// connections are here. Memory is known better from runs.
func (r *runner) machineWall(s scenario.Step, n int) string {
	if r.facts == nil || n < 1 {
		return ""
	}
	plan := doctor.Plan{Connections: n, Side: doctor.Both, Model: cmp.Or(s.Subject.Model(), "epoll"), Processes: s.Subject.Processes(s.Workload)}
	report, err := doctor.Examine(r.facts, plan)
	if err != nil {
		return "" // more than it can be asked for
	}
	i := slices.IndexFunc(report.Walls, func(w doctor.Wall) bool {
		return !w.Soft && w.Near(n) && w.Name != "memory" && w.Name != "cgroup-memory"
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

// needs is how many bytes of the machine's memory a run takes for each connection, as far as
// the largest run of its subject before it tells, and what tells.
func needs(s scenario.Step, before []result.Run) (each float64, from string) {
	each, from = firstGuess, "a cautious guess"
	switch {
	case s.Workload.Phase(scenario.Park) != nil:
		return parkedGuess, from
	case s.Subject.Model() == "epoll" || s.Subject.Model() == "uring":
		each = firstGuess / 2
	}
	most := 0
	for i := range before {
		r := &before[i]
		if r.Subject != s.Subject.Name || !r.Counts() || r.Connections < most {
			continue
		}
		idle, after := r.Figures["bytes-idle"]+r.Figures["kernel-idle"], r.Figures["bytes-exchanged"]+r.Figures["kernel-exchanged"]
		if took := max(idle, after); took > 0 && r.Figures["kernel-idle"] > 0 {
			most, each = r.Connections, took*growth
			from = "the run with " + format.Count(most)
		}
	}
	return each, from
}

// memoryGuard looks at the memory while connections are opened and held: with less than keep
// no more are opened, with less than half of it the run ends. It has a goroutine of its own,
// from begin to end.
type memoryGuard struct {
	keep int64        // bytes
	stop func() error // opens no more connections, nil where that can't be told
	over func(error)  // ends the run

	cancel  context.CancelFunc
	wait    sync.WaitGroup
	mu      sync.Mutex
	opening bool
	stopped string
}

// guardEvery is the time between two looks at the memory: at 30,000 connections a second of 9
// KB each, 27 MB are taken between them. mostBlind is how many may fail, one after the other.
const (
	guardEvery = 100 * time.Millisecond
	mostBlind  = 50
)

// begin begins to look, while connections are opened.
func (g *memoryGuard) begin() {
	ctx, cancel := context.WithCancel(context.Background())
	g.cancel, g.opening = cancel, true
	g.wait.Go(func() {
		for blind := 0; ; {
			room, err := readRoom()
			switch {
			case errors.Is(err, procfs.ErrNotAvailable):
				return
			case err == nil:
				blind = 0
				err = g.look(room)
			default:
				if blind++; blind < mostBlind {
					err = nil
				}
			}
			if err != nil {
				g.over(err)
				return
			}
			if pause(ctx, guardEvery) != nil {
				return
			}
		}
	})
}

// end ends the guard's goroutine and waits for it.
func (g *memoryGuard) end() {
	g.cancel()
	g.wait.Wait()
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

// doctorLines is what package doctor says of connections before they are opened: how many
// this machine holds, and each wall that is below what is wanted.
func (r *runner) doctorLines(s scenario.Step) []string {
	if r.facts == nil {
		return []string{"the machine's walls are not known"}
	}
	n := s.Workload.Connections
	report, err := doctor.Examine(r.facts, doctor.Plan{Connections: n, Side: doctor.Both, Model: cmp.Or(s.Subject.Model(), "epoll"), Processes: s.Subject.Processes(s.Workload)})
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
