package engine

import (
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// This file is how the memory of connections that have been handed over goes back to the
// system at once: the collector would leave it until the heap has grown again, and it does not
// grow any more. So both processes together need little more than one.

const (
	// freeMinBytes is from how many bytes on a collection is worth its time, if they are
	// freeHeapPart of the heap.
	freeMinBytes = 16 << 20
	freeHeapPart = 8
	// freeInterval is how often it is looked how many they are.
	freeInterval = 50 * time.Millisecond
)

// FreedBytes counts bytes that nobody needs any more.
type FreedBytes struct{ atomic.Int64 }

// StartFreeing gives them back until it is ended.
func (g *FreedBytes) StartFreeing() (stopFreeing func()) {
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(freeInterval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				g.freeIfWorthwhile()
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

func (g *FreedBytes) freeIfWorthwhile() {
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
