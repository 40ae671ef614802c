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
// The acceptor may be within Accept when nothing is to be accepted any more. So a
// deadline in the past is set on the listener; the acceptor then waits until that is
// taken back. It looks at the flag again each time before it accepts.
//
// To close the connections of a peer their table is gone through, a chunk at a time.
// Whose a connection is only its owner may ask the core. So the address comes from
// the connection of package net, and where a proxy tells another one, from table.told, too.

// hold is whether anything is accepted.
type hold struct {
	mu      sync.Mutex
	on      bool
	changed chan struct{} // holds one when that has changed; for the acceptor
}

// Hold implements engine.Engine.
func (g *group) Hold(on bool) error {
	if g.stop.Err() != nil {
		return engine.ErrClosed
	}
	l, ok := g.ln.(interface{ SetDeadline(time.Time) error })
	if !ok {
		return nil // it only dials
	}
	g.hold.mu.Lock()
	defer g.hold.mu.Unlock()
	g.hold.on = on
	var deadline time.Time
	if on {
		deadline = time.Unix(1, 0)
	}
	_ = l.SetDeadline(deadline) // it fails when the listener is closed
	signal(g.hold.changed)
	return nil
}

func (h *hold) isOn() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.on
}

// wait waits as long as nothing is to be accepted, and says whether to go on.
func (h *hold) wait(g *group) bool {
	if !h.isOn() {
		return true
	}
	g.counters.Set(engine.Holding, 1)
	defer g.counters.Set(engine.Holding, 0)
	for h.isOn() {
		select {
		case <-h.changed:
		case <-g.stop.Done():
			return false
		}
	}
	return true
}

// Expel implements engine.Engine.
func (g *group) Expel(peer netip.AddrPort) error {
	select {
	case <-g.done:
		return engine.ErrClosed
	default:
	}
	room := make([]*conn, 0, tableChunk)
	for i := 0; ; i++ {
		conns, more := g.chunkOf(peer, i, room)
		if !more {
			return nil
		}
		order(conns, expelled)
	}
}

// chunkOf lists the connections of a peer in a chunk of the table, if there is such
// a chunk.
func (g *group) chunkOf(peer netip.AddrPort, i int, room []*conn) (conns []*conn, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i >= len(g.conns.chunks) {
		return nil, false
	}
	others := func(c *conn) bool { return !g.conns.isOf(c, peer) }
	return slices.DeleteFunc(g.conns.inChunk(i, room), others), true
}

// isOf says whether a connection comes from a peer, or is one's by what its proxy has told.
func (t *table) isOf(c *conn, peer netip.AddrPort) bool {
	if told, ok := t.told[c]; ok && told == peer {
		return true
	}
	at := addrPort(c.nc.RemoteAddr())
	return netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port()) == peer
}

// tellPeer notes whose the connection is when its proxy has said that: with the
// first input that the core has seen after the greeting.
func (c *conn) tellPeer() {
	if c.group.cfg.Proxied == nil || c.named || c.Greets() {
		return
	}
	c.named = true
	g := c.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.conns.told == nil {
		g.conns.told = make(map[*conn]netip.AddrPort)
	}
	g.conns.told[c] = c.Peer()
}
