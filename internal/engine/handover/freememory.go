package handover

import (
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// This file returns the memory of exported connections to the system. Otherwise the garbage collector would keep the
// memory until the heap grows again, which does not happen in a process that exports its connections. So the two
// processes together need little more memory than one.

const (
	// Freed memory is returned to the system when it exceeds both freeMinBytes and 1/freeHeapPart of the heap.
	freeMinBytes = 16 << 20
	freeHeapPart = 8
	freeInterval = 50 * time.Millisecond
)

// FreedByteCounter counts bytes that this process has freed but not yet returned to the operating system.
type FreedByteCounter struct{ atomic.Int64 }

// StartReturningToOS starts a goroutine that periodically returns freed memory to the operating system. The function
// stopFreeing ends the goroutine. The caller must call stopFreeing exactly once.
func (g *FreedByteCounter) StartReturningToOS() (stopFreeing func()) {
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(freeInterval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				g.returnToOSIfLargeShare()
			case <-stop:
				return
			}
		}
	}()
	return func() {
		close(stop)
		<-ended
	}
}

func (g *FreedByteCounter) returnToOSIfLargeShare() {
	n := g.Load()
	if n < freeMinBytes {
		return
	}
	var m runtime.MemStats
	if runtime.ReadMemStats(&m); n >= int64(m.HeapInuse/freeHeapPart) {
		g.Add(-n)
		debug.FreeOSMemory()
	}
}
