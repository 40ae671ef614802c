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
	// minReservedBytes is the minimum memory that a run must leave free, or 1/reservedDivisor of all memory if that is
	// more.
	minReservedBytes = 256 << 20
	reservedDivisor  = 20
	// maxParkedBytes is an upper limit for the memory of a parked goroutine.
	maxParkedBytes = 4 << 10
	// maxTLSConnBytes is an upper limit for the memory of a TLS connection on one side.
	maxTLSConnBytes = 16 << 10
	// maxCompactTLSConnBytes replaces maxTLSConnBytes if neither side uses crypto/tls after the handshake.
	maxCompactTLSConnBytes = 2 << 10
	memoryGuardInterval    = 100 * time.Millisecond
)

// availableMemory contains the free memory and the total memory, in bytes. The free memory is what the machine has
// free, or less if a cgroup has a limit. If such a limit determines the free memory, limitedBy is the name of the
// limit. Otherwise, limitedBy is "".
type availableMemory struct {
	free, total int64
	limitedBy   string
}

func (r availableMemory) bytesToKeepFree() int64 {
	return max(minReservedBytes, r.total/reservedDivisor)
}

func (r availableMemory) limitedBySuffix() string {
	if r.limitedBy == "" {
		return ""
	}
	return " in " + r.limitedBy
}

// readAvailableMemory returns the memory that the machine and the limits of cgroups leave to this process.
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

// cancelWhenMemoryLow returns a context that is canceled when the machine is short of memory: when less than half of
// the reserve, bytesToKeepFree, is free. The caller must call the returned function to stop the checks.
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

func (r availableMemory) errIfLow() error {
	if r.free >= r.bytesToKeepFree()/2 {
		return nil
	}
	return fmt.Errorf("memory: only %s MB are free%s, less than half of the reserve of %s MB",
		format.Whole(float64(r.free)/1e6), r.limitedBySuffix(), format.Whole(float64(r.bytesToKeepFree())/1e6))
}
