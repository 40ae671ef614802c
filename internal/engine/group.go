package engine

import (
	"bytes"
	"sync"
)

// Group is a set of connections that get the same messages; see package tcp. One is
// kept in place, a few in a list, many in a set.
//
// Two locks guard it. sending is held for a message, so that all get them in one order; mu for
// a look or a change. A message to one or a few is posted with both held, one to a set with
// sending alone, chunk by chunk, as the set was at first: who is removed meanwhile is noted in
// the set, and mailboxes ask for that.
type Group struct {
	sending sync.Mutex
	mu      sync.Mutex // taken after sending, if both are
	one     Ref        // the only one, if more is nil
	more    *members
}

// members are more than one connection, or such as values are published to.
type members struct {
	few   list // if set is nil
	set   *set
	topic *Topic // nil until something is published
}

// maxFew is the most that a list has, and minSet the most that a set goes back to a list with.
// Larger lists would take less memory, but bursts to a set are joined.
const (
	maxFew = 8
	minSet = 4
)

// Add takes a connection in, unless it has closed.
func (g *Group) Add(r Ref) {
	if r.Closed() {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.more != nil:
		g.more.add(r)
	case g.one.Closed():
		g.one = r
	case g.one.c != r.c:
		g.more = &members{few: list{refs: []Ref{g.one, r}}}
		g.one = Ref{}
	}
}

func (m *members) add(r Ref) {
	if m.set != nil {
		m.set.add(r, m.topic)
		return
	}
	place := m.few.find(r.c)
	if m.few.has(place, r) {
		return
	}
	if place >= 0 {
		m.few.drop(place)
	}
	if len(m.few.refs) == maxFew {
		m.few.dropClosed()
	}
	var latest *Latest
	if m.topic != nil {
		latest = NewLatest(m.topic)
	}
	if m.few.add(r, latest); len(m.few.refs) <= maxFew {
		return
	}
	m.set = new(set)
	for i, r := range m.few.refs {
		m.set.put(r, m.few.part(i))
	}
	m.few = list{}
}

// Remove lets a connection go. What is posted to it when Remove has returned is behind all
// that it gets of the group.
func (g *Group) Remove(r Ref) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if latest, ok := g.remove(r); ok && latest != nil {
		latest.Leave()
	}
	g.fit()
}

// remove lets a connection go, and gives its part in the topic.
func (g *Group) remove(r Ref) (latest *Latest, ok bool) {
	switch {
	case r.c == nil:
	case g.more == nil:
		if ok = g.one == r; ok {
			g.one = Ref{}
		}
	case g.more.set != nil:
		if latest, ok = g.more.set.remove(r); ok && g.more.set.walked && !r.Closed() {
			g.more.set.left.add(r)
		}
	default:
		few := &g.more.few
		if place := few.find(r.c); place >= 0 && few.refs[place] == r {
			latest, ok = few.part(place), true
			few.drop(place)
		}
	}
	return latest, ok
}

// fit keeps as much as fewer need.
func (g *Group) fit() {
	m := g.more
	if m != nil && m.set != nil && m.set.n <= minSet && !m.set.walked {
		m.few, m.set = m.set.list(), nil
	}
	if m == nil || m.set != nil || len(m.few.refs) > 1 || len(m.few.refs) == 1 && m.topic != nil {
		return
	}
	if g.more = nil; len(m.few.refs) == 1 {
		g.one = m.few.refs[0]
	}
}

// Len is how many connections are in the group, with some that have closed.
func (g *Group) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.more == nil && g.one.c == nil:
		return 0
	case g.more == nil:
		return 1
	case g.more.set != nil:
		return g.more.set.n
	}
	return len(g.more.few.refs)
}

// Broadcast posts a copy of p to each. It says for how many p is on its way, and for how
// many there was no room.
func (g *Group) Broadcast(p []byte) (sent, full int) {
	g.sending.Lock()
	defer g.sending.Unlock()
	t, chunks := g.broadcastToFew(p)
	if chunks == nil {
		t.punish()
		return t.sent, t.full
	}
	message := chunks[0].refs[0].shared(p)
	for _, m := range chunks {
		one := m.send(message)
		t.sent += one.sent
		t.full += one.full
		one.punish()
		g.forget(one.closed)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.more.set.walked = false
	g.more.set.left.forget()
	g.fit()
	return t.sent, t.full
}

// shared makes a copy of p for r and others.
func (r Ref) shared(p []byte) *Shared {
	return &Shared{Bytes: bytes.Clone(p), counters: r.c.host.Shared}
}

// broadcastToFew posts a message if there are few, or gives the chunks to which it is to be sent.
func (g *Group) broadcastToFew(p []byte) (t Tally, chunks []*Many) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.more == nil && g.one.c == nil:
	case g.more == nil:
		t.count(g.one, len(p), g.one.Send(p))
	case g.more.set != nil:
		g.more.set.walked = true
		return t, g.more.set.chunks()
	default:
		message := g.more.few.refs[0].shared(p)
		for _, r := range g.more.few.refs {
			t.count(r, len(p), r.SendShared(message))
		}
	}
	g.drop(t.closed)
	return t, nil
}

// forget lets those go that were found to have closed.
func (g *Group) forget(closed []Ref) {
	if len(closed) == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.drop(closed)
}

func (g *Group) drop(closed []Ref) {
	for _, r := range closed {
		g.remove(r)
	}
	if len(closed) > 0 {
		g.fit()
	}
}

// Publish makes a copy of p the newest value of each. It says for how many p is on its
// way, and for how many it is not.
func (g *Group) Publish(p []byte) (sent, full int) {
	p = bytes.Clone(p)
	g.sending.Lock()
	defer g.sending.Unlock()
	t, chunks := g.publishToFew(p)
	for _, m := range chunks {
		one := m.publish(len(p))
		t.sent += one.sent
		t.full += one.full
		one.punish()
		g.forget(one.closed)
	}
	return t.sent, t.full
}

// publishToFew is broadcastToFew for a value.
func (g *Group) publishToFew(p []byte) (t Tally, chunks []*Many) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.more == nil {
		if g.one.Closed() {
			g.one = Ref{}
			return t, nil
		}
		g.more = &members{few: list{refs: []Ref{g.one}}}
		g.one = Ref{}
	}
	m := g.more
	if m.topic == nil {
		m.follow()
	}
	m.topic.Set(p)
	if m.set != nil {
		return t, m.set.chunks()
	}
	t = m.few.publish(len(p))
	g.drop(t.closed)
	return t, nil
}

// follow gives each a part in a topic.
func (m *members) follow() {
	m.topic = new(Topic)
	if m.set != nil {
		m.set.follow(m.topic)
	} else {
		m.few.follow(m.topic)
	}
}

// publish posts that the topic has a newer value, of size bytes.
func (l *list) publish(size int) (t Tally) {
	for i, r := range l.refs {
		t.count(r, size, r.Publish(l.latest[i], size))
	}
	return t
}
