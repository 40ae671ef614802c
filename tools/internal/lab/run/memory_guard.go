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
	// A run must leave at least minReservedBytes free, and at least 1/reservedDivisor of the memory.
	minReservedBytes = 256 << 20
	reservedDivisor  = 20
	// maxParkedBytes is an upper limit for the memory of a parked goroutine. It exceeds all measured values.
	maxParkedBytes = 4 << 10
	// maxTLSConnBytes is an upper limit for the memory of a TLS connection on one side. It exceeds all measured values.
	maxTLSConnBytes = 16 << 10
	// memoryGuardInterval is the time between two checks. With 30,000 new connections per second of 9 KB each, memory
	// grows by 27 MB between two checks.
	memoryGuardInterval = 100 * time.Millisecond
)

// availableMemory contains the memory that can still be allocated, and the total, in bytes. limitedBy is the name of
// the cgroup limit that applies, or "" if the machine's memory is the limit.
type availableMemory struct {
	free, total int64
	limitedBy   string
}

func (r availableMemory) bytesToKeepFree() int64 {
	return max(minReservedBytes, r.total/reservedDivisor)
}

// inLimitText returns " in " and the name of the limit, or "" if the machine's memory is the limit.
func (r availableMemory) inLimitText() string {
	if r.limitedBy == "" {
		return ""
	}
	return " in " + r.limitedBy
}

// readAvailableMemory reads the memory available to processes in this process's cgroups. For the machine, it adds free
// memory and half of the droppable file pages. It does not use MemAvailable, which counts much of the sockets' memory
// as available.
func readAvailableMemory() (availableMemory, error) {
	m, err := procfs.ReadMemory()
	if err != nil {
		return availableMemory{}, err
	}
	groups, err := cgroup.ReadLimits(os.Getpid())
	if err != nil && !procfs.IsNotFoundOrExited(err) { // a kernel without cgroups
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

// cancelWhenMemoryLow checks the memory ten times a second. When less than half of the reserve is free, it cancels the
// returned context; the cause says so. The returned function stops the checks and waits until they have stopped.
func cancelWhenMemoryLow(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			room, err := readAvailableMemory()
			if errors.Is(err, procfs.ErrNotAvailable) {
				return
			}
			if err == nil { // on error, try again later
				err = room.errIfLow()
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

// errIfLow returns an error if less than half of bytesToKeepFree is free.
func (r availableMemory) errIfLow() error {
	if r.free >= r.bytesToKeepFree()/2 {
		return nil
	}
	return fmt.Errorf("memory: only %s MB are free%s, less than half of the reserve of %s MB",
		format.Whole(float64(r.free)/1e6), r.inLimitText(), format.Whole(float64(r.bytesToKeepFree())/1e6))
}
