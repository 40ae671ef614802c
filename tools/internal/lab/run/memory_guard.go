package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/cgroup"
	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/tools/internal/procfs"
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
	m, err := procfs.ReadMemory()
	if err != nil {
		return room{}, err
	}
	groups, err := cgroup.ReadLimits(os.Getpid())
	if err != nil && !procfs.Gone(err) { // a kernel without cgroups
		return room{}, err
	}
	r := room{free: m.Free + m.FilePages/2, total: m.Total}
	if limit := groups.Memory; limit.From != "" {
		r.total = min(r.total, limit.Max)
		if left := max(limit.Max-limit.Used, 0); left < r.free {
			r.free, r.of = left, limit.From
		}
	}
	return r, nil
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
