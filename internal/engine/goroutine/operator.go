package goroutine

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file implements an administrator's operations on a running engine.
//
// When accepting is paused, the acceptors may be blocked in Accept. So PauseAccept sets a deadline in the past on the
// listeners; each acceptor then waits until accepting resumes.
//
// QueueCloseOfPeerConns searches the table of connections, a chunk at a time. Only the owner of a connection may call
// Conn.Peer, so the address comes from the net.Conn or, if a proxy has announced another address, from
// connTable.proxied.

type acceptPauseState struct {
	mu              sync.Mutex
	paused          bool
	pausedAcceptors int
	changed         chan struct{} // closed and replaced when paused has changed
}

func (e *goroutineEngine) PauseAccept(paused bool) error {
	if e.stopCtx.Err() != nil {
		return engine.ErrClosed
	}
	e.acceptPause.mu.Lock()
	defer e.acceptPause.mu.Unlock()
	e.acceptPause.paused = paused
	var deadline time.Time
	if paused {
		deadline = time.Unix(1, 0)
	}
	for _, l := range e.listeners {
		if l, ok := l.(interface{ SetDeadline(time.Time) error }); ok {
			_ = l.SetDeadline(deadline) // fails when the listener is closed
		}
	}
	close(e.acceptPause.changed)
	e.acceptPause.changed = make(chan struct{})
	return nil
}

// waitUntilResumed blocks while the operator has paused accepting. It returns false if the engine stops.
func (h *acceptPauseState) waitUntilResumed(e *goroutineEngine) (resumed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.paused {
		return true
	}
	h.adjustPausedAcceptors(e, 1)
	defer h.adjustPausedAcceptors(e, -1)
	for h.paused {
		changed := h.changed
		h.mu.Unlock()
		select {
		case <-changed:
		case <-e.stopCtx.Done():
		}
		h.mu.Lock()
		if e.stopCtx.Err() != nil {
			return false
		}
	}
	return true
}

// adjustPausedAcceptors adds delta to the number of paused acceptors and updates the gauge AcceptPausedCount. The
// caller must hold h.mu.
func (h *acceptPauseState) adjustPausedAcceptors(e *goroutineEngine, delta int) {
	h.pausedAcceptors += delta
	e.counters.SetGaugeBool(engine.AcceptPausedCount, h.pausedAcceptors == len(e.listeners))
}

func (e *goroutineEngine) QueueCloseOfPeerConns(peer netip.AddrPort) (stoppedErr error) {
	if isChanClosed(e.done) {
		return engine.ErrClosed
	}
	for conns := range e.connChunks {
		e.mu.Lock()
		conns = slices.DeleteFunc(conns, func(c *conn) bool { return !e.conns.connHasDirectOrProxiedPeer(c, peer) })
		e.mu.Unlock()
		requestAndWakeAll(conns, requestExpel)
	}
	return nil
}

func (e *goroutineEngine) PostToEveryConn(message *engine.Shared, beforeEachPost func(), onDone func(full int)) error {
	if isChanClosed(e.done) {
		return engine.ErrClosed
	}
	full := 0
	for conns := range e.connChunks {
		for _, c := range conns {
			beforeEachPost()
			if err := c.getOrCreateMailbox().PutShared(&c.Conn, engine.RequestDo, message); err == nil {
				c.wake()
			} else if message.OnLost(); err == engine.ErrFull {
				full++
			}
		}
	}
	onDone(full)
	return nil
}

// connChunks iterates over the connections of the engine in groups. A group is valid only until the next iteration.
func (e *goroutineEngine) connChunks(yield func([]*conn) bool) {
	conns := make([]*conn, 0, chunkSize)
	for i := 0; ; i++ {
		e.mu.Lock()
		more := i < len(e.conns.chunks) && e.conns.used > 0
		if more {
			conns = e.conns.appendChunkConns(conns[:0], i, i+1)
		}
		e.mu.Unlock()
		if !more || !yield(conns) {
			return
		}
		clear(conns)
	}
}

// isChanClosed reports whether ch is closed. No value may ever be sent on ch.
func isChanClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func (t *connTable) connHasDirectOrProxiedPeer(c *conn, peer netip.AddrPort) bool {
	if proxied, ok := t.proxied[c]; ok && proxied == peer {
		return true
	}
	source := toAddrPort(c.netConn.RemoteAddr())
	return netip.AddrPortFrom(source.Addr().Unmap().WithZone(""), source.Port()) == peer
}

func (c *conn) recordProxiedPeerOnce() {
	if c.engine.cfg.IsProxy == nil || c.proxiedPeerRecorded || c.InHandshake() {
		return
	}
	c.proxiedPeerRecorded = true
	e := c.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.conns.proxied == nil {
		e.conns.proxied = make(map[*conn]netip.AddrPort)
	}
	e.conns.proxied[c] = c.Peer()
}
