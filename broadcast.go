package myriad

import (
	"errors"
	"sync"

	"github.com/myriad-go/myriad/internal/engine"
)

// Broadcast sends p to every connection that is open, from anywhere, and returns at once: it
// keeps one copy for all, and each loop walks through its connections, a few hundred at a
// time, so that others are served meanwhile. Broadcasts of one goroutine arrive in the order
// of its calls, those that wait together, in one send; between broadcasts and Ref.Send there
// is no order. A connection that opens meanwhile may get it or not. Server.SlowConsumer says
// what happens to one that has no room.
//
// At most 1,024 may be under way, of Limits.MaxMailBytes together: beyond that it answers
// ErrFull, and nobody gets p. It answers ErrTooLarge for more than Limits.MaxUnsent bytes, and
// ErrServerClosed before the start and after the end.
//
// With Server.Processes it reaches the connections of all worker processes, from any of them
// and from their supervisor, and in all of them in one order. Then p has at most 1 MiB, and 64
// may wait in each process on the way. A worker process that takes none of them for a second
// misses one, which is logged.
func (s *Server) Broadcast(p []byte) error {
	s.mu.Lock()
	e, w := s.engine, s.worker
	s.mu.Unlock()
	switch {
	case e == nil:
		return ErrServerClosed
	case len(p) > s.limits.MaxUnsent:
		return ErrTooLarge
	case w != nil:
		return named(w.Broadcast(p))
	}
	return named(e.Broadcast(p))
}

// Group is a set of connections that get the same messages, such as those in a
// room. The zero value is empty. Its methods are safe for concurrent use. Add and
// Remove do not wait for a broadcast. A connection that has closed leaves the group
// at the next broadcast, or when so many have been added as there were after the
// last cleaning, 64 at least: so a group has no more closed ones than that. A
// handler that wants Len to be exact removes it in Closed.
type Group struct {
	sending sync.Mutex // held for a broadcast, so that all get them in one order
	all     []listed   // the room for a list, with sending
	topic   engine.Topic

	// mu is taken after sending, if both are.
	mu     sync.Mutex
	refs   map[*engine.Conn]uint32       // by generation, which takes less than a Ref
	latest map[engine.Ref]*engine.Latest // nil until something is published
	many   []*engine.Many                // the same for broadcasts; nil if they have changed
	clean  int                           // how many there were after the last cleaning
}

// listed is a connection of a group.
type listed struct {
	ref    engine.Ref
	latest *engine.Latest
}

// minClean is how many connections a group may have without a look at whether
// they have closed.
const minClean = 64

// Add takes a connection in. It is in the group once, however often it is added.
func (g *Group) Add(r Ref) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.refs == nil {
		g.refs = make(map[*engine.Conn]uint32)
	}
	c, generation := r.r.Split()
	if had, ok := g.refs[c]; !ok || had != generation && c.RefOf(had).Closed() {
		delete(g.latest, c.RefOf(had))
		g.refs[c], g.many = generation, nil
	}
	if len(g.refs) > max(2*g.clean, minClean) {
		g.drop()
	}
}

// drop lets those go that have closed. Each that is added pays for a look at two.
func (g *Group) drop() {
	for c, generation := range g.refs {
		if r := c.RefOf(generation); r.Closed() {
			g.delete(r)
		}
	}
	g.clean, g.many = len(g.refs), nil
}

// Remove lets a connection go. A broadcast that is under way may reach it still.
func (g *Group) Remove(r Ref) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if latest := g.latest[r.r]; latest != nil {
		latest.Leave()
	}
	g.delete(r.r)
	g.many = nil
}

func (g *Group) delete(r engine.Ref) {
	delete(g.latest, r)
	if c, generation := r.Split(); g.refs[c] == generation {
		delete(g.refs, c)
	}
}

// Len is how many connections are in the group, with some that have closed.
func (g *Group) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.refs)
}

// Broadcast sends p to all in the group, as Ref.Send does but with one copy of it
// for all. It says for how many p is on its way, and for how many there was no
// room (ErrFull, or ErrTooLarge). Broadcasts to one group wait for each other, and
// reach its connections in one order.
func (g *Group) Broadcast(p []byte) (sent, full int) {
	message := &engine.Shared{Bytes: append([]byte(nil), p...)}
	g.sending.Lock()
	defer g.sending.Unlock()
	for _, m := range g.byOwner() {
		n, no, closed := m.Send(message)
		sent += n
		full += no
		g.forget(closed)
	}
	return sent, full
}

// byOwner gives all in the group, so that others need not wait while they are sent to.
func (g *Group) byOwner() []*engine.Many {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.many == nil {
		refs := make([]engine.Ref, 0, len(g.refs))
		for c, generation := range g.refs {
			refs = append(refs, c.RefOf(generation))
		}
		g.many = engine.ByOwner(refs)
	}
	return g.many
}

// Publish sends p to all in the group as their newest value, such as a price or a
// position: it takes the place of the value that was published before, for each
// connection to which that has not begun to be sent. So a peer that reads slowly gets
// fewer values, each of them whole and newer than the last, and the newest in the end.
// No values pile up for it, and it is not closed with ErrSlowConsumer for them. There
// is one copy of p for all. What has gone to the kernel can't be replaced any more:
// Server.Socket bounds how much that is.
//
// A connection gets values when nothing else is owed to it, so broadcasts and messages of
// Ref.Send may overtake them, and the newest value may overtake those in turn. Values that
// are to be kept apart need a group each: of each group one value may wait for a
// connection. Stats.Replaced counts values that were replaced, for each connection, and so
// does Conn.Dropped.
//
// Publish says for how many p is on its way, and for how many it is not, because there
// was no room for mail (ErrFull) or p is larger than Limits.MaxUnsent; these may have
// got an older value and get a newer one. It waits as Broadcast does.
func (g *Group) Publish(p []byte) (sent, full int) {
	p = append([]byte(nil), p...)
	g.sending.Lock()
	defer g.sending.Unlock()
	g.topic.Set(p)
	var closed []engine.Ref
	for _, m := range g.list() {
		switch err := m.ref.Publish(m.latest, len(p)); {
		case err == nil:
			sent++
		case errors.Is(err, ErrClosed):
			closed = append(closed, m.ref)
		default:
			full++
		}
	}
	g.forget(closed)
	clear(g.all)
	return sent, full
}

// list copies the group, so that others need not wait while it is sent to.
func (g *Group) list() []listed {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := len(g.refs); cap(g.all) < n || cap(g.all) > 4*n+minClean {
		g.all = make([]listed, 0, n)
	}
	g.all = g.all[:0]
	if g.latest == nil {
		g.latest = make(map[engine.Ref]*engine.Latest)
	}
	for c, generation := range g.refs {
		r := c.RefOf(generation)
		latest := g.latest[r]
		if latest == nil {
			latest = engine.NewLatest(&g.topic)
			g.latest[r] = latest
		}
		g.all = append(g.all, listed{r, latest})
	}
	return g.all
}

// forget lets those go that were found to have closed.
func (g *Group) forget(closed []engine.Ref) {
	if len(closed) == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range closed {
		g.delete(r)
	}
	g.clean, g.many = len(g.refs), nil
}
