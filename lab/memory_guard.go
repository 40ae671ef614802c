package lab

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/procfs"
)

// guardEvery is the time between two looks at the memory: at 30,000 connections a
// second of 9 KB each, 27 MB are taken between them.
const guardEvery = 100 * time.Millisecond

// mostBlind is how many looks one after the other may fail before the run ends: 5 s, in
// which 1.4 GB are taken.
const mostBlind = 50

// memoryGuard looks at the memory while connections are opened and held. It has a
// goroutine of its own, from begin to end.
type memoryGuard struct {
	keep   int64 // bytes
	room   func() (memoryRoom, error)
	enough func() error    // opens no more connections, nil where that can't be told
	over   func(err error) // ends the run

	stop context.CancelFunc // nil before begin
	wait sync.WaitGroup

	mu      sync.Mutex
	opening bool
	stopped *MillionStop // nil while there was enough
}

// begin begins to look, while connections are opened.
func (g *memoryGuard) begin() {
	ctx, stop := context.WithCancel(context.Background())
	g.stop, g.opening = stop, true
	g.wait.Go(func() { g.watch(ctx) })
}

// end ends the guard's goroutine and waits for it.
func (g *memoryGuard) end() {
	if g.stop != nil {
		g.stop()
		g.wait.Wait()
	}
}

// connected is when no more connections are opened. It says where that was, if the
// guard is the reason.
func (g *memoryGuard) connected() *MillionStop {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.opening = false
	return g.stopped
}

// watch looks until ctx ends. On a system that doesn't tell it doesn't.
func (g *memoryGuard) watch(ctx context.Context) {
	tick := time.NewTicker(guardEvery)
	defer tick.Stop()
	for blind := 0; ; {
		room, err := g.room()
		switch {
		case errors.Is(err, procfs.ErrNotAvailable):
			return
		case err == nil:
			blind = 0
			err = g.look(room)
		default:
			if blind++; blind < mostBlind {
				err = nil
			} else {
				err = fmt.Errorf("memory: what is free could not be read %d times: %w", blind, err)
			}
		}
		if err != nil {
			g.over(err)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// look decides by what is free. An error says that nothing is to go on.
func (g *memoryGuard) look(room memoryRoom) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	free := room.free
	if free >= g.keep {
		return nil
	}
	if g.opening && g.enough != nil && g.stopped == nil {
		g.stopped = &MillionStop{Wall: "memory", Free: free, Keep: g.keep, Of: room.of}
		if err := g.enough(); err != nil {
			return fmt.Errorf("memory: only %s MB are free%s, and the load generator can't be told: %w", thousands(float64(free)/1e6), room.in(), err)
		}
	}
	if free < g.keep/2 {
		return fmt.Errorf("memory: only %s MB are free%s, less than half of the %s MB that are to stay free",
			thousands(float64(free)/1e6), room.in(), thousands(float64(g.keep)/1e6))
	}
	return nil
}
