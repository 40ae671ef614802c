package goroutine

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file is what an operator may do to an engine that runs.
//
// The acceptors may be within Accept when nothing is to be accepted any more. So a
// deadline in the past is set on the listeners; each acceptor then waits until that is
// taken back. It looks at the flag again each time before it accepts.
//
// To close the connections of a peer their table is gone through, a chunk at a time.
// Whose a connection is only its owner may ask the core. So the address comes from
// the connection of package net, and where a proxy tells another one, from table.proxied, too.

// acceptPause is whether anything is accepted.
type acceptPause struct {
	mu              sync.Mutex
	paused          bool
	pausedAcceptors int           // acceptors that accept nothing
	changed         chan struct{} // closed when on has changed, and made anew
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
			_ = l.SetDeadline(deadline) // it fails when the listener is closed
		}
	}
	close(e.acceptPause.changed)
	e.acceptPause.changed = make(chan struct{})
	return nil
}

// waitUntilResumed waits as long as nothing is to be accepted, and says whether to go on. When all
// acceptors wait, that is counted.
func (h *acceptPause) waitUntilResumed(e *goroutineEngine) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.paused {
		return true
	}
	h.addPausedAcceptors(e, 1)
	defer h.addPausedAcceptors(e, -1)
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

// addPausedAcceptors counts one acceptor more, or less, that waits.
func (h *acceptPause) addPausedAcceptors(e *goroutineEngine, n int) {
	h.pausedAcceptors += n
	e.counters.SetBool(engine.AcceptPausedCount, h.pausedAcceptors == len(e.listeners))
}

func (e *goroutineEngine) ClosePeerConns(peer netip.AddrPort) error {
	if isClosed(e.done) {
		return engine.ErrClosed
	}
	for conns := range e.connChunks {
		e.mu.Lock()
		conns = slices.DeleteFunc(conns, func(c *conn) bool { return !e.conns.hasPeer(c, peer) })
		e.mu.Unlock()
		requestAllAndWake(conns, requestExpel)
	}
	return nil
}

func (e *goroutineEngine) VisitConns(s *engine.Shared, beforePut func(), onDone func(full int)) error {
	if isClosed(e.done) {
		return engine.ErrClosed
	}
	full := 0
	for conns := range e.connChunks {
		for _, c := range conns {
			beforePut()
			if err := c.mailbox().PutShared(&c.Conn, engine.RequestDo, s); err == nil {
				c.wake()
			} else if s.OnLost(); err == engine.ErrFull {
				full++
			}
		}
	}
	onDone(full)
	return nil
}

// connChunks lists the connections, those of one chunk of the table at a time. A list is valid
// until the next one.
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

// isClosed says whether a channel is closed that nothing is sent to.
func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// hasPeer says whether a connection comes from a peer, or is one's by what its proxy has told.
func (t *connTable) hasPeer(c *conn, peer netip.AddrPort) bool {
	if proxied, ok := t.proxied[c]; ok && proxied == peer {
		return true
	}
	source := toAddrPort(c.netConn.RemoteAddr())
	return netip.AddrPortFrom(source.Addr().Unmap().WithZone(""), source.Port()) == peer
}

// recordProxiedPeer notes whose the connection is when its proxy has said that: with the
// first input that the core has seen after the greeting.
func (c *conn) recordProxiedPeer() {
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
