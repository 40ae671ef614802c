package secure

import (
	"container/list"
	"context"
	"errors"
	"runtime"
	"sync"
	"time"
)

// stallTimeout is the time for which a server may wait for its client's input while other handshakes are queued.
const stallTimeout = time.Second

var errStalled = errors.New("secure: the client stalled the handshake for a second or more while others were queued")

// DefaultMaxHandshakes is the default number of slots. With few slots, a few stalled clients would block all others.
// The handshake of a stalled client takes about 22 KiB (measured).
const DefaultMaxHandshakes = 4096

// A HandshakeLimiter limits how many handshakes run, each with a goroutine in a slot, and how many of them compute at
// the same time. Further handshakes wait in a FIFO queue without a goroutine. The queue is limited only by the number
// of connections. HandshakeLimiter is safe for concurrent use.
//
// While handshakes are queued, a handshake that has waited a second for its client's input loses its slot, the
// longest-waiting one first. Stalled clients therefore block other clients for at most a second. Servers and clients in
// a process need separate limiters: clients could otherwise take the slots that their servers need.
type HandshakeLimiter struct {
	cpuTokens  chan struct{} // one for each handshake that computes
	goroutines sync.WaitGroup

	mu         sync.Mutex
	maxRunning int
	running    int
	evicting   int       // how many of running are being evicted
	queue      list.List // of handshakes; each is in at most one of these lists
	stalled    list.List
}

// NewHandshakeLimiter returns a limiter for maxRunning handshakes, of which maxUsingCPU compute at the same time. If
// maxRunning is 0 or less, it is DefaultMaxHandshakes. If maxUsingCPU is 0 or less, it is GOMAXPROCS.
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

// Wait waits until no handshake has a goroutine. Before the call, all unfinished sessions must be aborted. From then
// on, no session may be created or fed.
func (g *HandshakeLimiter) Wait() { g.goroutines.Wait() }

// startOrQueueHandshake starts the handshake or, if the limiter is full, queues it. If more handshakes are queued than
// slots are about to become free, the handshake that has been stalled longest is evicted.
func (g *HandshakeLimiter) startOrQueueHandshake(h *handshake) {
	if evicted := g.startOrQueueLocked(h); evicted != nil {
		evicted.cancel(errStalled)
	}
}

func (g *HandshakeLimiter) startOrQueueLocked(h *handshake) (evicted *handshake) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running < g.maxRunning {
		g.startHandshakeGoroutine(h)
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

func (g *HandshakeLimiter) startHandshakeGoroutine(h *handshake) {
	g.running++
	g.goroutines.Add(1)
	go h.runHandshake()
}

// evictOrMarkStalled handles a handshake whose client has sent nothing for stallTimeout. If a queued handshake needs
// the slot, it evicts h and returns true. Otherwise it marks h as stalled: until unmarkStalled, a handshake that is
// queued later can evict h.
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
		g.startHandshakeGoroutine(next)
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
		return true
	case <-ctx.Done():
		return false
	}
}

func (g *HandshakeLimiter) releaseCPUToken() { <-g.cpuTokens }
