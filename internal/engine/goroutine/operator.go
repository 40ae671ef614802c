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

// hold is whether anything is accepted.
type hold struct {
	mu      sync.Mutex
	on      bool
	waiting int           // acceptors that accept nothing
	changed chan struct{} // closed when on has changed, and made anew
}

func (g *group) PauseAccept(on bool) error {
	if g.stop.Err() != nil {
		return engine.ErrClosed
	}
	g.hold.mu.Lock()
	defer g.hold.mu.Unlock()
	g.hold.on = on
	var deadline time.Time
	if on {
		deadline = time.Unix(1, 0)
	}
	for _, l := range g.lns {
		if l, ok := l.(interface{ SetDeadline(time.Time) error }); ok {
			_ = l.SetDeadline(deadline) // it fails when the listener is closed
		}
	}
	close(g.hold.changed)
	g.hold.changed = make(chan struct{})
	return nil
}

// wait waits as long as nothing is to be accepted, and says whether to go on. When all
// acceptors wait, that is counted.
func (h *hold) wait(g *group) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.on {
		return true
	}
	h.count(g, 1)
	defer h.count(g, -1)
	for h.on {
		changed := h.changed
		h.mu.Unlock()
		select {
		case <-changed:
		case <-g.stop.Done():
		}
		h.mu.Lock()
		if g.stop.Err() != nil {
			return false
		}
	}
	return true
}

// count counts one acceptor more, or less, that waits.
func (h *hold) count(g *group, n int) {
	h.waiting += n
	g.counters.SetBool(engine.AcceptPausedCount, h.waiting == len(g.lns))
}

func (g *group) ClosePeerConns(peer netip.AddrPort) error {
	if isClosed(g.done) {
		return engine.ErrClosed
	}
	for conns := range g.chunks {
		g.mu.Lock()
		conns = slices.DeleteFunc(conns, func(c *conn) bool { return !g.conns.isOf(c, peer) })
		g.mu.Unlock()
		requestAll(conns, expelled)
	}
	return nil
}

func (g *group) VisitConns(s *engine.Shared, beforePost func(), done func(full int)) error {
	if isClosed(g.done) {
		return engine.ErrClosed
	}
	full := 0
	for conns := range g.chunks {
		for _, c := range conns {
			beforePost()
			if err := c.mailbox().PutShared(&c.Conn, engine.RequestDo, s); err == nil {
				c.wake()
			} else if s.OnLost(); err == engine.ErrFull {
				full++
			}
		}
	}
	done(full)
	return nil
}

// chunks lists the connections, those of one chunk of the table at a time. A list is valid
// until the next one.
func (g *group) chunks(yield func([]*conn) bool) {
	room := make([]*conn, 0, tableChunk)
	for i := 0; ; i++ {
		g.mu.Lock()
		more := i < len(g.conns.chunks) && g.conns.used > 0
		if more {
			room = g.conns.some(room[:0], i, i+1)
		}
		g.mu.Unlock()
		if !more || !yield(room) {
			return
		}
		clear(room)
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

// isOf says whether a connection comes from a peer, or is one's by what its proxy has told.
func (t *table) isOf(c *conn, peer netip.AddrPort) bool {
	if told, ok := t.proxied[c]; ok && told == peer {
		return true
	}
	at := addrPort(c.nc.RemoteAddr())
	return netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port()) == peer
}

// noteProxiedPeer notes whose the connection is when its proxy has said that: with the
// first input that the core has seen after the greeting.
func (c *conn) noteProxiedPeer() {
	if c.group.cfg.IsProxy == nil || c.peerTold || c.InHandshake() {
		return
	}
	c.peerTold = true
	g := c.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.conns.proxied == nil {
		g.conns.proxied = make(map[*conn]netip.AddrPort)
	}
	g.conns.proxied[c] = c.Peer()
}
