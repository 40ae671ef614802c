package goroutine

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file limits the time that bulk connections, which send much, take from others. A bulk connection would read for
// as long as the scheduler permits, and while any goroutine is runnable, the scheduler checks the network only every 10
// ms, for 128 events at a time. So bulk connections need a token to read, and there are as many tokens as CPUs.
// Connections wait for a token in order. They do not wait in the scheduler's queue, which stays short. Every
// pauseInterval, all bulk reads pause until the pending network events have been reported. A token is held only during
// the read, because a handler may block.

const (
	bulkReadSize  = 16 << 10 // a connection becomes bulk when a read returns more bytes
	pauseInterval = time.Millisecond
)

type readLimiter struct {
	tokens    chan struct{} // holds one element for each token in use
	pauseMu   sync.RWMutex  // held for writing during a pause
	lastPause atomic.Int64  // engine.MonotonicNow at the last pause
	pausing   atomic.Bool
	barrier   pollerBarrier
}

func (t *readLimiter) init() error {
	t.tokens = make(chan struct{}, runtime.GOMAXPROCS(0))
	return t.barrier.open()
}

// acquireTokenThenYield waits for a read token and then lets other goroutines run. The caller must call releaseToken.
func (t *readLimiter) acquireTokenThenYield() {
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

// awaitMemoryAndReadPermitUnlessWoken waits until there is memory for a read buffer. If the peer sends much (c.bulk),
// it then also waits for a token of the readLimiter. It stops waiting and returns false if another goroutine sends to
// the connection or requests something of it, or if memory stays short for maxMemoryWaits. If it returns true, the
// caller must call releaseReadPermit after reading.
func (c *conn) awaitMemoryAndReadPermitUnlessWoken() (permitted bool) {
	e := c.engine
	for tries := 0; c.bulk || (c.lastReadFull || c.bufferedBytes.Load() > 0) && e.buffersExceedBudget(e.largeReadBytes.Load()); tries++ {
		if c.bulk {
			waitedLong := tries >= maxMemoryWaits && !e.buffersExceedBudget(0)
			if e.readLimiter.acquireTokenThenYield(); (waitedLong || !e.buffersExceedBudget(e.largeReadBytes.Load())) && !c.hasMailOrRequests() {
				return true
			}
			e.readLimiter.releaseToken()
		}
		if e.closeLargestConnsIfOverBudget(); c.hasMailOrRequests() || tries > maxMemoryWaits {
			return !c.bulk && !c.hasMailOrRequests() && !e.buffersExceedBudget(0)
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

// maxMemoryWaits is the maximum number of times that a read waits for buffer memory. Each wait takes one millisecond.
const maxMemoryWaits = 50
