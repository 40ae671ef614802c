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
// order and off the scheduler's queue, which so stays short; and every pauseInterval all
// turns pause until the events that the network has by then have been seen. A turn
// ends when the bytes have been read, because a handler may block.

const (
	// bulkReadSize is the most that a read brings of a connection that takes no turns.
	bulkReadSize  = 16 << 10
	pauseInterval = time.Millisecond
)

// readLimiter are the turns of a group's connections.
type readLimiter struct {
	tokens    chan struct{} // holds one for each connection whose turn it is, or is next
	pauseMu   sync.RWMutex  // held for writing while all pause
	lastPause atomic.Int64  // when they have last paused, as engine.Since
	pausing   atomic.Bool
	barrier   pollBarrier
}

func (t *readLimiter) init() error {
	t.tokens = make(chan struct{}, runtime.GOMAXPROCS(0))
	return t.barrier.open()
}

// acquireToken waits for a turn, and lets all others run first. The caller ends it with end.
func (t *readLimiter) acquireToken() {
	t.tokens <- struct{}{}
	if engine.MonotonicNow()-time.Duration(t.lastPause.Load()) >= pauseInterval && t.pausing.CompareAndSwap(false, true) {
		t.pauseMu.Lock()
		t.barrier.waitForPoll()
		t.lastPause.Store(int64(engine.MonotonicNow()))
		t.pauseMu.Unlock()
		t.pausing.Store(false)
	}
	t.pauseMu.RLock()
	runtime.Gosched()
}

func (t *readLimiter) releaseToken() {
	t.pauseMu.RUnlock()
	<-t.tokens
}

// waitForReadPermit is called before a read. One that may make buffers grow much waits until
// there is memory and, if the connection sends much, for its turn; waitForReadPermit says whether
// to read now, and then releaseReadPermit follows. It fails when the connection itself is wanted,
// for it may be the one to give way, and after maxMemoryWaits if connections hold too
// much: where it is only reads under way that would, of handlers that block, it goes on.
func (c *conn) waitForReadPermit() bool {
	e := c.engine
	for tries := 0; c.bulk || (c.lastReadFull || c.bufferedBytes.Load() > 0) && e.exceedsBudget(e.largeReadBytes.Load()); tries++ {
		if c.bulk {
			waitedLong := tries >= maxMemoryWaits && !e.exceedsBudget(0)
			if e.readLimiter.acquireToken(); (waitedLong || !e.exceedsBudget(e.largeReadBytes.Load())) && !c.hasRequests() {
				return true
			}
			e.readLimiter.releaseToken()
		}
		if e.closeLargestConns(); c.hasRequests() || tries > maxMemoryWaits {
			return !c.bulk && !c.hasRequests() && !e.exceedsBudget(0)
		}
		time.Sleep(time.Millisecond)
	}
	return true
}

// releaseReadPermit ends what waitForReadPermit has begun.
func (c *conn) releaseReadPermit() {
	if c.bulk {
		c.engine.readLimiter.releaseToken()
	}
}

// maxMemoryWaits is for how many milliseconds a read waits for memory before the
// connection looks around.
const maxMemoryWaits = 50
