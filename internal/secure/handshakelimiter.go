package secure

import (
	"container/list"
	"context"
	"errors"
	"runtime"
	"sync"
	"time"
)

// stallTimeout is how long a server's handshake may wait for bytes from its client
// and keep its place while others wait for one.
const stallTimeout = time.Second

// errStalled ends a handshake that has stalled, for those that wait.
var errStalled = errors.New("secure: the client let the handshake wait for a second or more, and others wait for its place")

// DefaultMaxHandshakes is how many handshakes a Gate lets be under way by default.
// One whose client stalls takes some 22 KiB, measured, until its owner aborts it;
// with few places a few such clients would keep everybody else waiting.
const DefaultMaxHandshakes = 4096

// A Gate bounds handshakes: how many are under way, and so have a goroutine, and
// how many of these compute at the same time. The others wait their turn, first
// come first served; they cost no goroutine, and the queue is as long as there
// are connections. While somebody waits, a handshake that has waited a second for
// bytes from its client gives up its place, the one that has waited longest first:
// so clients that stall keep others out for no more than that. A Gate serves one side only:
// if the clients of the same process stood before it too, they could take the places that
// their servers need.
//
// A handshake gives up its place by itself, in its goroutine, when its second is over
// and somebody waits without a place on its way to him. If nobody does, it goes into
// the list of those that have stalled, from which whoever comes to a full gate takes
// the first, and ends its context. So while more wait than are on their way out,
// nobody is in that list.
//
// It is safe for concurrent use.
type HandshakeLimiter struct {
	cpuTokens  chan struct{} // one for each that computes
	goroutines sync.WaitGroup

	mu         sync.Mutex
	maxRunning int
	running    int
	evicting   int       // of running, those that were told to give up their places
	queue      list.List // of handshakes, each in one of these at most
	stalled    list.List
}

// NewHandshakeLimiter is a gate with places for max handshakes, of which cpus compute at the
// same time. Zero or less asks for the default: 4096 places, and as many that
// compute as Go runs at the same time.
func NewHandshakeLimiter(maxRunning, maxComputing int) *HandshakeLimiter {
	if maxRunning <= 0 {
		maxRunning = DefaultMaxHandshakes
	}
	if maxComputing <= 0 {
		maxComputing = runtime.GOMAXPROCS(0)
	}
	return &HandshakeLimiter{maxRunning: maxRunning, cpuTokens: make(chan struct{}, maxComputing)}
}

// Counts says how many handshakes are under way and how many wait for a place.
func (g *HandshakeLimiter) Counts() (running, waiting int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running, g.queue.Len()
}

// Wait waits until no handshake has a goroutine. It is for the end, when no
// session is made or fed any more and those in a handshake are aborted.
func (g *HandshakeLimiter) Wait() { g.goroutines.Wait() }

// startOrQueue starts the handshake, or queues it.
func (g *HandshakeLimiter) startOrQueue(h *handshake) {
	if evicted := g.admitOrEvict(h); evicted != nil {
		evicted.cancel(errStalled)
	}
}

// admitOrEvict is enter, and says who is to give up its place for it.
func (g *HandshakeLimiter) admitOrEvict(h *handshake) (evicted *handshake) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running < g.maxRunning {
		g.startGoroutine(h)
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

// startGoroutine gives the handshake a place and its goroutine.
func (g *HandshakeLimiter) startGoroutine(h *handshake) {
	g.running++
	g.goroutines.Add(1)
	go h.runHandshake()
}

// evictOrMarkStalled is for a handshake whose second is over. It says whether it has to give up
// its place now; otherwise it may be told so until it has called resume.
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

// unmarkStalled ends a stall. It is false if the handshake was told to give up its place.
func (g *HandshakeLimiter) unmarkStalled(h *handshake) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h.stalled != nil {
		g.stalled.Remove(h.stalled)
		h.stalled = nil
	}
	return !h.isEvicted
}

// releaseSlot gives a place back, for the next in the queue. The goroutine that had
// it ends now.
func (g *HandshakeLimiter) releaseSlot(h *handshake) {
	g.mu.Lock()
	g.running--
	if h.isEvicted {
		g.evicting--
	}
	if first := g.queue.Front(); first != nil {
		next := g.queue.Remove(first).(*handshake)
		next.queued = nil
		g.startGoroutine(next)
	}
	g.mu.Unlock()
	g.goroutines.Done()
}

// dequeue takes the handshake out of the queue, if it is there. If so it never
// runs.
func (g *HandshakeLimiter) dequeue(h *handshake) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h.queued == nil {
		return false
	}
	g.queue.Remove(h.queued)
	h.queued = nil
	return true
}

// acquireCPU waits for a token. It is false when the context ended first.
func (g *HandshakeLimiter) acquireCPU(ctx context.Context) bool {
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

// releaseCPU gives a token back.
func (g *HandshakeLimiter) releaseCPU() { <-g.cpuTokens }
