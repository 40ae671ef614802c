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
	// minReservedBytes and reservedDivisor are how much memory a run leaves: at least so many bytes, and
	// that part of all.
	minReservedBytes = 256 << 20
	reservedDivisor  = 20
	// maxParkedBytes is more than a parked goroutine has ever taken.
	maxParkedBytes = 4 << 10
	// maxTLSConnBytes is more than a connection with TLS has ever taken on each side.
	maxTLSConnBytes = 16 << 10
	// memoryGuardInterval is the time between two looks at the memory: at 30,000 connections a second
	// of 9 KB each, 27 MB are taken between them.
	memoryGuardInterval = 100 * time.Millisecond
)

// availableMemory is memory that can still be had, in bytes: what there is, of how much in all, and the
// limit of a control group that leaves the least, "" where that is the machine.
type availableMemory struct {
	free, total int64
	limitedBy   string
}

// reserve is how much of the memory is to stay free.
func (r availableMemory) reserve() int64 { return max(minReservedBytes, r.total/reservedDivisor) }

// inLimit says where it is: nothing for the machine.
func (r availableMemory) inLimit() string {
	if r.limitedBy == "" {
		return ""
	}
	return " in " + r.limitedBy
}

// readAvailableMemory reads what can be had on this machine by processes of this one's control groups.
// Of the machine it is what nothing uses, and half of the pages of files that can be dropped;
// MemAvailable would have much of what sockets hold in it.
func readAvailableMemory() (availableMemory, error) {
	m, err := procfs.ReadMemory()
	if err != nil {
		return availableMemory{}, err
	}
	groups, err := cgroup.Read(os.Getpid())
	if err != nil && !procfs.IsGone(err) { // a kernel without cgroups
		return availableMemory{}, err
	}
	r := availableMemory{free: m.Free + m.FilePages/2, total: m.Total}
	if limit := groups.Memory; limit.From != "" {
		r.total = min(r.total, limit.Max)
		if left := max(limit.Max-limit.Used, 0); left < r.free {
			r.free, r.limitedBy = left, limit.From
		}
	}
	return r, nil
}

// startMemoryGuard looks at the memory ten times a second until the returned function is called,
// which waits. When less than half of what is to stay free is left, the returned context ends,
// with that as its cause.
func startMemoryGuard(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			room, err := readAvailableMemory()
			if errors.Is(err, procfs.ErrNotAvailable) {
				return
			}
			if err == nil { // or the next look tells
				err = room.checkReserve()
				if err != nil {
					cancel(err)
					return
				}
			}
			if sleepContext(ctx, memoryGuardInterval) != nil {
				return
			}
		}
	})
	return ctx, func() {
		cancel(nil)
		wait.Wait()
	}
}

// checkReserve fails when less than half of what is to stay free is left.
func (r availableMemory) checkReserve() error {
	if r.free >= r.reserve()/2 {
		return nil
	}
	return fmt.Errorf("memory: only %s MB are free%s, less than half of the %s MB that are to stay free",
		format.Whole(float64(r.free)/1e6), r.inLimit(), format.Whole(float64(r.reserve())/1e6))
}
