package goroutine

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// Fairness between bulk connections and others. A bulk connection would read for as long as the scheduler
// lets it, and while any goroutine is runnable, the scheduler checks the network only every 10 ms, for 128
// events at a time. So bulk connections need a token to read, and there are as many tokens as processors.
// Connections wait for one in order, and off the scheduler's queue, which stays short. Every pauseInterval
// all bulk reads pause until the network's current events have been seen. A token is held only for the read,
// because a handler may block.

const (
	// bulkReadSize is the largest read of a connection that is not bulk, in bytes.
	bulkReadSize  = 16 << 10
	pauseInterval = time.Millisecond
)

type readLimiter struct {
	tokens    chan struct{} // holds one element for each connection that reads, or will next
	pauseMu   sync.RWMutex  // held for writing during a pause
	lastPause atomic.Int64  // engine.Since of the last pause
	pausing   atomic.Bool
	barrier   pollerBarrier
}

func (t *readLimiter) init() error {
	t.tokens = make(chan struct{}, runtime.GOMAXPROCS(0))
	return t.barrier.open()
}

// waitForToken waits for a token, and lets all other goroutines run first. The caller releases it with
// releaseToken.
func (t *readLimiter) waitForToken() {
	t.tokens <- struct{}{}
	if engine.MonotonicNow()-time.Duration(t.lastPause.Load()) >= pauseInterval && t.pausing.CompareAndSwap(false, true) {
		t.pauseMu.Lock()
		t.barrier.waitForPollerPass()
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

// waitForReadPermit waits before a read that may need much memory, and for a token if the connection is bulk.
// It reports whether to read now; releaseReadPermit must follow then. It reports false if the connection has
// requests, because it may be the one that must close for memory, and after maxMemoryWaits if connections
// hold too much. If only reads in progress would exceed the limit, of handlers that block, it permits the
// read.
func (c *conn) waitForReadPermit() (permitted bool) {
	e := c.engine
	for tries := 0; c.bulk || (c.lastReadFull || c.bufferedBytes.Load() > 0) && e.exceedsBudget(e.largeReadBytes.Load()); tries++ {
		if c.bulk {
			waitedLong := tries >= maxMemoryWaits && !e.exceedsBudget(0)
			if e.readLimiter.waitForToken(); (waitedLong || !e.exceedsBudget(e.largeReadBytes.Load())) && !c.hasRequests() {
				return true
			}
			e.readLimiter.releaseToken()
		}
		if e.closeLargestConnsIfOverBudget(); c.hasRequests() || tries > maxMemoryWaits {
			return !c.bulk && !c.hasRequests() && !e.exceedsBudget(0)
		}
		time.Sleep(time.Millisecond)
	}
	return true
}

func (c *conn) releaseReadPermit() {
	if c.bulk {
		c.engine.readLimiter.releaseToken()
	}
}

// maxMemoryWaits is how many milliseconds a read waits for memory before the connection checks its state.
const maxMemoryWaits = 50
