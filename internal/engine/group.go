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
	members *members
}

// members are more than one connection, or such as values are published to.
type members struct {
	list   connList // if set is nil
	set    *connSet
	latest *LatestValue // nil until something is published
}

// maxListLen is the most that a list has, and minSetLen the most that a set goes back to a list with.
// Larger lists would take less memory, but bursts to a set are joined.
const (
	maxListLen = 8
	minSetLen  = 4
)

// Add takes a connection in, unless it has closed.
func (g *Group) Add(r Ref) {
	if r.IsClosed() {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.members != nil:
		g.members.add(r)
	case g.one.IsClosed():
		g.one = r
	case g.one.c != r.c:
		g.members = &members{list: connList{refs: []Ref{g.one, r}}}
		g.one = Ref{}
	}
}

func (m *members) add(r Ref) {
	if m.set != nil {
		m.set.add(r, m.latest)
		return
	}
	place := m.list.indexOf(r.c)
	if m.list.containsAt(place, r) {
		return
	}
	if place >= 0 {
		m.list.removeAt(place)
	}
	if len(m.list.refs) == maxListLen {
		m.list.removeClosed()
	}
	var latest *LatestSubscription
	if m.latest != nil {
		latest = NewLatestSubscription(m.latest)
	}
	if m.list.add(r, latest); len(m.list.refs) <= maxListLen {
		return
	}
	m.set = new(connSet)
	for i, r := range m.list.refs {
		m.set.insert(r, m.list.subscriptionAt(i))
	}
	m.list = connList{}
}

// Remove lets a connection go. What is posted to it when Remove has returned is behind all
// that it gets of the group.
func (g *Group) Remove(r Ref) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if latest, ok := g.remove(r); ok && latest != nil {
		latest.Unsubscribe()
	}
	g.shrinkToFit()
}

// remove lets a connection go, and gives its part in the topic.
func (g *Group) remove(r Ref) (sub *LatestSubscription, ok bool) {
	switch {
	case r.c == nil:
	case g.members == nil:
		if ok = g.one == r; ok {
			g.one = Ref{}
		}
	case g.members.set != nil:
		if sub, ok = g.members.set.remove(r); ok && g.members.set.broadcasting && !r.IsClosed() {
			g.members.set.removed.add(r)
		}
	default:
		few := &g.members.list
		if place := few.indexOf(r.c); place >= 0 && few.refs[place] == r {
			sub, ok = few.subscriptionAt(place), true
			few.removeAt(place)
		}
	}
	return sub, ok
}

// shrinkToFit keeps as much as fewer need.
func (g *Group) shrinkToFit() {
	m := g.members
	if m != nil && m.set != nil && m.set.count <= minSetLen && !m.set.broadcasting {
		m.list, m.set = m.set.toList(), nil
	}
	if m == nil || m.set != nil || len(m.list.refs) > 1 || len(m.list.refs) == 1 && m.latest != nil {
		return
	}
	if g.members = nil; len(m.list.refs) == 1 {
		g.one = m.list.refs[0]
	}
}

// Len is how many connections are in the group, with some that have closed.
func (g *Group) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.members == nil && g.one.c == nil:
		return 0
	case g.members == nil:
		return 1
	case g.members.set != nil:
		return g.members.set.count
	}
	return len(g.members.list.refs)
}

// Broadcast posts a copy of p to each. It says for how many p is on its way, and for how
// many there was no room.
func (g *Group) Broadcast(p []byte) (sent, full int) {
	g.sending.Lock()
	defer g.sending.Unlock()
	t, chunks := g.broadcastOrChunks(p)
	if chunks == nil {
		t.handleSlow()
		return t.sent, t.full
	}
	message := chunks[0].refs[0].newShared(p)
	for _, m := range chunks {
		one := m.broadcast(message)
		t.sent += one.sent
		t.full += one.full
		one.handleSlow()
		g.lockAndRemoveClosed(one.closed)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.members.set.broadcasting = false
	g.members.set.removed.clear()
	g.shrinkToFit()
	return t.sent, t.full
}

// newShared makes a copy of p for r and others.
func (r Ref) newShared(p []byte) *Shared {
	return &Shared{Bytes: bytes.Clone(p), counters: r.c.runtime.Shared}
}

// broadcastOrChunks posts a message if there are few, or gives the chunks to which it is to be sent.
func (g *Group) broadcastOrChunks(p []byte) (t PostTally, chunks []*ConnChunk) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.members == nil && g.one.c == nil:
	case g.members == nil:
		t.recordResult(g.one, len(p), g.one.Send(p))
	case g.members.set != nil:
		g.members.set.broadcasting = true
		return t, g.members.set.snapshotChunks()
	default:
		message := g.members.list.refs[0].newShared(p)
		for _, r := range g.members.list.refs {
			t.recordResult(r, len(p), r.SendShared(message))
		}
	}
	g.removeClosed(t.closed)
	return t, nil
}

// lockAndRemoveClosed lets those go that were found to have closed.
func (g *Group) lockAndRemoveClosed(closed []Ref) {
	if len(closed) == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.removeClosed(closed)
}

func (g *Group) removeClosed(closed []Ref) {
	for _, r := range closed {
		g.remove(r)
	}
	if len(closed) > 0 {
		g.shrinkToFit()
	}
}

// SendLatest makes a copy of p the newest value of each. It says for how many p is on its
// way, and for how many it is not.
func (g *Group) SendLatest(p []byte) (sent, full int) {
	p = bytes.Clone(p)
	g.sending.Lock()
	defer g.sending.Unlock()
	t, chunks := g.sendLatestOrChunks(p)
	for _, m := range chunks {
		one := m.sendLatest(len(p))
		t.sent += one.sent
		t.full += one.full
		one.handleSlow()
		g.lockAndRemoveClosed(one.closed)
	}
	return t.sent, t.full
}

// sendLatestOrChunks is broadcastOrChunks for a value.
func (g *Group) sendLatestOrChunks(p []byte) (t PostTally, chunks []*ConnChunk) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.members == nil {
		if g.one.IsClosed() {
			g.one = Ref{}
			return t, nil
		}
		g.members = &members{list: connList{refs: []Ref{g.one}}}
		g.one = Ref{}
	}
	m := g.members
	if m.latest == nil {
		m.createLatest()
	}
	m.latest.Set(p)
	if m.set != nil {
		return t, m.set.snapshotChunks()
	}
	t = m.list.sendLatest(len(p))
	g.removeClosed(t.closed)
	return t, nil
}

// createLatest gives each a part in a topic.
func (m *members) createLatest() {
	m.latest = new(LatestValue)
	if m.set != nil {
		m.set.subscribeAll(m.latest)
	} else {
		m.list.subscribeAll(m.latest)
	}
}

// sendLatest posts that the topic has a newer value, of size bytes.
func (l *connList) sendLatest(valueSize int) (t PostTally) {
	for i, r := range l.refs {
		t.recordResult(r, valueSize, r.SendLatest(l.subscriptions[i], valueSize))
	}
	return t
}
