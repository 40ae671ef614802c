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
	// minReservedBytes and reservedDivisor define the memory that a run must leave free: at least
	// minReservedBytes, and 1/reservedDivisor of the total.
	minReservedBytes = 256 << 20
	reservedDivisor  = 20
	// maxParkedBytes is an upper limit for the memory of a parked goroutine, above all measured values.
	maxParkedBytes = 4 << 10
	// maxTLSConnBytes is an upper limit for the memory of a TLS connection on one side, above all measured
	// values.
	maxTLSConnBytes = 16 << 10
	// memoryGuardInterval is the time between two checks. At 30,000 connections per second of 9 KB each, 27 MB
	// are allocated between two checks.
	memoryGuardInterval = 100 * time.Millisecond
)

// availableMemory describes the memory that can still be allocated, and the total, in bytes. It also contains
// the name of the tightest cgroup limit, or "" if the machine's memory is tighter.
type availableMemory struct {
	free, total int64
	limitedBy   string
}

// bytesToKeepFree is the part of the memory that must stay free.
func (r availableMemory) bytesToKeepFree() int64 {
	return max(minReservedBytes, r.total/reservedDivisor)
}

// inLimitText returns " in " and the limit's name, or "" for the machine.
func (r availableMemory) inLimitText() string {
	if r.limitedBy == "" {
		return ""
	}
	return " in " + r.limitedBy
}

// readAvailableMemory reads the memory available to processes in this process's cgroups. On the machine,
// available memory is free memory and half of the droppable file pages. MemAvailable is not used, because it
// counts much of the sockets' memory as available.
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

// cancelWhenMemoryLow checks the memory ten times a second. If less than half of the reserve is free, the returned
// context ends with a corresponding cause. The returned function stops the checks and waits.
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

// errIfLow returns an error if less than half of the reserve is free.
func (r availableMemory) errIfLow() error {
	if r.free >= r.bytesToKeepFree()/2 {
		return nil
	}
	return fmt.Errorf("memory: only %s MB are free%s, less than half of the reserve of %s MB",
		format.Whole(float64(r.free)/1e6), r.inLimitText(), format.Whole(float64(r.bytesToKeepFree())/1e6))
}
