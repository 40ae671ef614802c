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
	// heavyRead is the most that a read brings of a connection that takes no turns.
	heavyRead = 16 << 10
	turnSlice = time.Millisecond
)

// turns are the turns of a group's connections.
type turns struct {
	places  chan struct{} // holds one for each connection whose turn it is, or is next
	pause   sync.RWMutex  // held for writing while all pause
	paused  atomic.Int64  // when they have last paused, as engine.Since
	pausing atomic.Bool
	network visitor
}

func (t *turns) open() error {
	t.places = make(chan struct{}, runtime.GOMAXPROCS(0))
	return t.network.open()
}

// take waits for a turn, and lets all others run first. The caller ends it with end.
func (t *turns) take() {
	t.places <- struct{}{}
	if engine.Since()-time.Duration(t.paused.Load()) >= turnSlice && t.pausing.CompareAndSwap(false, true) {
		t.pause.Lock()
		t.network.visit()
		t.paused.Store(int64(engine.Since()))
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
