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
	// tlsBytes is more than a connection with TLS has ever taken on each side.
	tlsBytes = 16 << 10
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
func (r room) kept() int64 { return max(leastKept, r.total/keptShare) }

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
		if need := int64(w.Connections) * parkedBytes; err == nil && need > room.free-room.kept() {
			return fmt.Sprintf("memory: %s goroutines need up to %s; %s are free%s", format.Count(w.Connections), format.Bytes(float64(need)), format.Bytes(float64(room.free)), room.in())
		}
		return ""
	}
	n := w.For(s.Subject.MaxConns).Connections
	report, err := examine(s, n)
	if n < 1 || err != nil {
		return "" // or it fails
	}
	i := slices.IndexFunc(report.Walls, func(x doctor.Wall) bool { return !x.Soft && x.Near(n) })
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

// guardMemory looks at the memory ten times a second until the returned function is called,
// which waits. When less than half of what is to stay free is left, the returned context ends,
// with that as its cause.
func guardMemory(ctx context.Context) (context.Context, func()) {
	ctx, over := context.WithCancelCause(ctx)
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			room, err := readRoom()
			if errors.Is(err, procfs.ErrNotAvailable) {
				return
			}
			if err == nil { // or the next look tells
				err = room.low()
				if err != nil {
					over(err)
					return
				}
			}
			if pause(ctx, guardEvery) != nil {
				return
			}
		}
	})
	return ctx, func() {
		over(nil)
		wait.Wait()
	}
}

// low fails when less than half of what is to stay free is left.
func (r room) low() error {
	if r.free >= r.kept()/2 {
		return nil
	}
	return fmt.Errorf("memory: only %s MB are free%s, less than half of the %s MB that are to stay free",
		format.Whole(float64(r.free)/1e6), r.in(), format.Whole(float64(r.kept())/1e6))
}
