package secure

import (
	"container/list"
	"context"
	"errors"
	"runtime"
	"sync"
	"time"
)

// stallTimeout is how long a server waits for a client's input while other handshakes are queued.
const stallTimeout = time.Second

var errStalled = errors.New("secure: the client stalled the handshake for a second or more while others were queued")

// DefaultMaxHandshakes is the default number of concurrent handshakes. A stalled handshake takes about 22 KiB.
const DefaultMaxHandshakes = 4096

// HandshakeLimiter limits the number of running TLS handshakes, and the number of handshakes that use the CPU at the
// same time. Further handshakes wait in an unlimited FIFO queue. A queued handshake has no goroutine. A
// HandshakeLimiter is safe for concurrent use.
//
// If handshakes are queued, the limiter ends running server handshakes that have waited a second or more for input from
// their clients. It ends at most one for each queued handshake.
//
// A process needs separate limiters for its servers and its clients. With a common limiter, the clients' handshakes
// could prevent the servers' handshakes from running.
type HandshakeLimiter struct {
	cpuTokens  chan struct{} // one element for each handshake that computes
	goroutines sync.WaitGroup

	mu         sync.Mutex
	maxRunning int
	running    int
	evicting   int       // number of running handshakes that are being evicted
	queue      list.List // a handshake is in at most one of these lists
	stalled    list.List
}

// NewHandshakeLimiter returns a limiter that allows maxRunning handshakes to run, and maxUsingCPU of them to compute at
// the same time. If maxRunning is 0 or less, the limit is DefaultMaxHandshakes. If maxUsingCPU is 0 or less, the limit
// is GOMAXPROCS.
func NewHandshakeLimiter(maxRunning, maxUsingCPU int) *HandshakeLimiter {
	if maxRunning <= 0 {
		maxRunning = DefaultMaxHandshakes
	}
	if maxUsingCPU <= 0 {
		maxUsingCPU = runtime.GOMAXPROCS(0)
	}
	return &HandshakeLimiter{maxRunning: maxRunning, cpuTokens: make(chan struct{}, maxUsingCPU)}
}

func (g *HandshakeLimiter) Counts() (running, waiting int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running, g.queue.Len()
}

// Wait blocks until the goroutines of all handshakes have ended. Before calling Wait, abort all sessions. Create no
// sessions afterwards.
func (g *HandshakeLimiter) Wait() { g.goroutines.Wait() }

func (g *HandshakeLimiter) startOrQueueHandshake(h *handshake) {
	if evicted := g.startOrQueueEvictingStalled(h); evicted != nil {
		evicted.cancel(errStalled)
	}
}

func (g *HandshakeLimiter) startOrQueueEvictingStalled(h *handshake) (evicted *handshake) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running < g.maxRunning {
		g.startHandshakeLocked(h)
		return nil
	}
	h.queued = g.queue.PushBack(h)
	first := g.stalled.Front()
	if first == nil || g.queue.Len() <= g.evicting {
		return nil
	}
	evicted = g.stalled.Remove(first).(*handshake)
	evicted.stalled = nil
	g.evicting++
	evicted.isEvicted = true
	return evicted
}

func (g *HandshakeLimiter) startHandshakeLocked(h *handshake) {
	g.running++
	g.goroutines.Add(1)
	go h.runHandshake()
}

// evictOrMarkStalled is called when h has waited too long for its client. If a queued handshake needs a slot, it evicts
// h and returns true, and the caller must end h. Otherwise, it marks h as stalled, so that a handshake queued later can
// evict h.
func (g *HandshakeLimiter) evictOrMarkStalled(h *handshake) (evicted bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.queue.Len() > g.evicting {
		g.evicting++
		h.isEvicted = true
		return true
	}
	h.stalled = g.stalled.PushBack(h)
	return false
}

func (g *HandshakeLimiter) unmarkStalled(h *handshake) (keepsSlot bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h.stalled != nil {
		g.stalled.Remove(h.stalled)
		h.stalled = nil
	}
	return !h.isEvicted
}

func (g *HandshakeLimiter) releaseSlotAndStartNext(h *handshake) {
	g.mu.Lock()
	g.running--
	if h.isEvicted {
		g.evicting--
	}
	if first := g.queue.Front(); first != nil {
		next := g.queue.Remove(first).(*handshake)
		next.queued = nil
		g.startHandshakeLocked(next)
	}
	g.mu.Unlock()
	g.goroutines.Done()
}

func (g *HandshakeLimiter) dequeue(h *handshake) (wasQueued bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h.queued == nil {
		return false
	}
	g.queue.Remove(h.queued)
	h.queued = nil
	return true
}

func (g *HandshakeLimiter) acquireCPUToken(ctx context.Context) (acquired bool) {
	if ctx.Err() != nil {
		return false
	}
	select {
	case g.cpuTokens <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	// Event loops that wait for a processor run first; otherwise, each token would pass to the next handshake before
	// them. A loop may find out that the client has left.
	runtime.Gosched()
	if ctx.Err() != nil {
		g.releaseCPUToken()
		return false
	}
	return true
}

func (g *HandshakeLimiter) releaseCPUToken() { <-g.cpuTokens }
