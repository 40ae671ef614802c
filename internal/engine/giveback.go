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
	// giveBackLeast is from how many bytes on a collection is worth its time, if they are
	// giveBackPart of the heap.
	giveBackLeast = 16 << 20
	giveBackPart  = 8
	// giveBackEvery is how often it is looked how many they are.
	giveBackEvery = 50 * time.Millisecond
)

// Given counts bytes that nobody needs any more.
type Given struct{ atomic.Int64 }

// GiveBack gives them back until it is ended.
func (g *Given) GiveBack() (end func()) {
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(giveBackEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				g.collect()
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

func (g *Given) collect() {
	n := g.Load()
	if n < giveBackLeast {
		return
	}
	var m runtime.MemStats
	if runtime.ReadMemStats(&m); n >= int64(m.HeapInuse/giveBackPart) {
		g.Add(-n)
		debug.FreeOSMemory()
	}
}
