package goroutine

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file keeps connections that send much from delaying the others. Each would go
// on for as long as the scheduler lets it, and as long as any of them is ready the
// scheduler looks at the network every 10 ms only, at 128 events at a time. So they
// take turns, as many at a time as there are processors. They wait for theirs in
// order and off the scheduler's queue, which so stays short; and every turnSlice all
// turns pause until the events that the network has by then have been seen. A turn
// ends when the bytes have been read, because a handler may block.

const (
	// bulkRead is the most that a read brings of a connection that takes no turns.
	bulkRead  = 16 << 10
	turnSlice = time.Millisecond
)

// turns are the turns of a group's connections.
type turns struct {
	places  chan struct{} // holds one for each connection whose turn it is, or is next
	pause   sync.RWMutex  // held for writing while all pause
	paused  atomic.Int64  // when they have last paused, as engine.Since
	pausing atomic.Bool
	barrier pollBarrier
}

func (t *turns) open() error {
	t.places = make(chan struct{}, runtime.GOMAXPROCS(0))
	return t.barrier.open()
}

// take waits for a turn, and lets all others run first. The caller ends it with end.
func (t *turns) take() {
	t.places <- struct{}{}
	if engine.MonotonicNow()-time.Duration(t.paused.Load()) >= turnSlice && t.pausing.CompareAndSwap(false, true) {
		t.pause.Lock()
		t.barrier.pass()
		t.paused.Store(int64(engine.MonotonicNow()))
		t.pause.Unlock()
		t.pausing.Store(false)
	}
	t.pause.RLock()
	runtime.Gosched()
}

func (t *turns) end() {
	t.pause.RUnlock()
	<-t.places
}

// mayRead is called before a read. One that may make buffers grow much waits until
// there is memory and, if the connection sends much, for its turn; mayRead says whether
// to read now, and then hasRead follows. It fails when the connection itself is wanted,
// for it may be the one to give way, and after memoryPatience if connections hold too
// much: where it is only reads under way that would, of handlers that block, it goes on.
func (c *conn) mayRead() bool {
	g := c.group
	for tries := 0; c.bulk || (c.fullRead || c.buffered.Load() > 0) && g.overBudget(g.reading.Load()); tries++ {
		if c.bulk {
			late := tries >= memoryPatience && !g.overBudget(0)
			if g.turns.take(); (late || !g.overBudget(g.reading.Load())) && !c.hasRequests() {
				return true
			}
			g.turns.end()
		}
		if g.shedBuffers(); c.hasRequests() || tries > memoryPatience {
			return !c.bulk && !c.hasRequests() && !g.overBudget(0)
		}
		time.Sleep(time.Millisecond)
	}
	return true
}

// hasRead ends what mayRead has begun.
func (c *conn) hasRead() {
	if c.bulk {
		c.group.turns.end()
	}
}

// memoryPatience is for how many milliseconds a read waits for memory before the
// connection looks around.
const memoryPatience = 50
