package engine

import (
	"bytes"
	"sync"
)

// Group is a set of connections that get the same messages; see package tcp. It is safe for concurrent use.
//
// The lock sendMu is held while a message is posted to all connections, so that all connections get the messages in the
// same order. The lock mu guards the members of the group. In a small group, mu is also held while a message is posted.
// In a large group, the message is posted to a snapshot of the members, and mu is not held.
type Group struct {
	sendMu  sync.Mutex
	mu      sync.Mutex // locked after sendMu
	one     Ref        // the only connection, if members is nil
	members *groupMembers
}

// groupMembers contains the connections of a group.
type groupMembers struct {
	list   connList // used while set is nil
	set    *connSet
	latest *LatestValue // nil before SendLatest
}

// Sizes at which a group changes from a list of connections to a connSet, and back.
const (
	maxListLen = 8 // a longer list becomes a set
	minSetLen  = 4 // a set of this size becomes a list
)

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
		g.members = &groupMembers{list: connList{refs: []Ref{g.one, r}}}
		g.one = Ref{}
	}
}

func (m *groupMembers) add(r Ref) {
	if m.set != nil {
		m.set.addAndSubscribe(r, m.latest)
		return
	}
	place := m.list.indexOf(r.c)
	if m.list.hasSameOrNewerRefAt(place, r) {
		return
	}
	if place >= 0 {
		m.list.swapRemoveAt(place)
	}
	if len(m.list.refs) == maxListLen {
		m.list.removeClosed()
	}
	var latest *LatestSubscription
	if m.latest != nil {
		latest = NewSubscriptionToLaterValues(m.latest)
	}
	if m.list.add(r, latest); len(m.list.refs) <= maxListLen {
		return
	}
	m.set = new(connSet)
	for i, r := range m.list.refs {
		m.set.insertGrowAndRemoveSomeClosed(r, m.list.subscriptionAt(i))
	}
	m.list = connList{}
}

// Remove removes r from the group. If a request is posted to r after Remove has returned, the connection handles the
// group's earlier messages first.
func (g *Group) Remove(r Ref) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if latest, ok := g.removeLocked(r); ok && latest != nil {
		latest.Unsubscribe()
	}
	g.shrinkRepresentationLocked()
}

// removeLocked removes r. sub is the subscription of r to the group's latest value, or nil if r has none. If r is not
// in the group, found is false. The caller must hold g.mu.
func (g *Group) removeLocked(r Ref) (sub *LatestSubscription, found bool) {
	switch {
	case r.c == nil:
	case g.members == nil:
		if found = g.one == r; found {
			g.one = Ref{}
		}
	case g.members.set != nil:
		if sub, found = g.members.set.remove(r); found && g.members.set.broadcasting && !r.IsClosed() {
			g.members.set.removed.add(r)
		}
	default:
		few := &g.members.list
		if place := few.indexOf(r.c); place >= 0 && few.refs[place] == r {
			sub, found = few.subscriptionAt(place), true
			few.swapRemoveAt(place)
		}
	}
	return sub, found
}

// shrinkRepresentationLocked stores the members in the smallest of the group's three forms that suits their number. The
// caller must hold g.mu.
func (g *Group) shrinkRepresentationLocked() {
	m := g.members
	if m != nil && m.set != nil && m.set.count <= minSetLen && !m.set.broadcasting {
		m.list, m.set = m.set.toConnList(), nil
	}
	if m == nil || m.set != nil || len(m.list.refs) > 1 || len(m.list.refs) == 1 && m.latest != nil {
		return
	}
	if g.members = nil; len(m.list.refs) == 1 {
		g.one = m.list.refs[0]
	}
}

// Len returns the number of connections in the group. It may include connections that have closed.
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

// Broadcast posts a copy of p to each connection of the group. It returns how many connections accepted the copy, and
// how many had no space for it.
func (g *Group) Broadcast(p []byte) (postedConns, fullConns int) {
	g.sendMu.Lock()
	defer g.sendMu.Unlock()
	t, chunks := g.broadcastToFewOrSnapshot(p)
	if chunks == nil {
		t.requestDropOrAbortForSlowConns()
		return t.sent, t.full
	}
	message := chunks[0].refs[0].newShared(p)
	for _, m := range chunks {
		one := m.broadcastShared(message)
		t.sent += one.sent
		t.full += one.full
		one.requestDropOrAbortForSlowConns()
		g.lockAndRemoveClosed(one.closed)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.members.set.broadcasting = false
	g.members.set.removed.clear()
	g.shrinkRepresentationLocked()
	return t.sent, t.full
}

func (r Ref) newShared(p []byte) *Shared {
	return &Shared{Bytes: bytes.Clone(p), counters: r.c.runtime.Shared}
}

// broadcastToFewOrSnapshot posts p to a small group. For a large group, it returns the chunks to which to post p.
func (g *Group) broadcastToFewOrSnapshot(p []byte) (t PostOutcomes, chunks []*GroupChunk) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.members == nil && g.one.c == nil:
	case g.members == nil:
		t.countPostOrCollectRefused(g.one, len(p), g.one.Send(p))
	case g.members.set != nil:
		g.members.set.broadcasting = true
		return t, g.members.set.snapshotChunks()
	default:
		message := g.members.list.refs[0].newShared(p)
		for _, r := range g.members.list.refs {
			t.countPostOrCollectRefused(r, len(p), r.SendShared(message))
		}
	}
	g.removeClosedLocked(t.closed)
	return t, nil
}

func (g *Group) lockAndRemoveClosed(closed []Ref) {
	if len(closed) == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.removeClosedLocked(closed)
}

func (g *Group) removeClosedLocked(closed []Ref) {
	for _, r := range closed {
		g.removeLocked(r)
	}
	if len(closed) > 0 {
		g.shrinkRepresentationLocked()
	}
}

// SendLatest makes a copy of p the group's latest value. If an older value has not been sent to a connection yet, the
// new value replaces it. SendLatest returns the number of connections that will get this value or a newer one, and the
// number of connections that had no space for it.
func (g *Group) SendLatest(p []byte) (announcedConns, fullConns int) {
	p = bytes.Clone(p)
	g.sendMu.Lock()
	defer g.sendMu.Unlock()
	t, chunks := g.setLatestAndAnnounceOrSnapshot(p)
	for _, m := range chunks {
		one := m.announceLatest(len(p))
		t.sent += one.sent
		t.full += one.full
		one.requestDropOrAbortForSlowConns()
		g.lockAndRemoveClosed(one.closed)
	}
	return t.sent, t.full
}

// setLatestAndAnnounceOrSnapshot stores p as the group's latest value. In a small group, it announces the value to all
// connections. For a large group, it returns the chunks to which the caller must announce the value.
func (g *Group) setLatestAndAnnounceOrSnapshot(p []byte) (t PostOutcomes, chunks []*GroupChunk) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.members == nil {
		if g.one.IsClosed() {
			g.one = Ref{}
			return t, nil
		}
		g.members = &groupMembers{list: connList{refs: []Ref{g.one}}}
		g.one = Ref{}
	}
	m := g.members
	if m.latest == nil {
		m.subscribeAllToNewLatest()
	}
	m.latest.Set(p)
	if m.set != nil {
		return t, m.set.snapshotChunks()
	}
	t = m.list.announceLatest(len(p))
	g.removeClosedLocked(t.closed)
	return t, nil
}

func (m *groupMembers) subscribeAllToNewLatest() {
	m.latest = new(LatestValue)
	if m.set != nil {
		m.set.replaceAllSubscriptions(m.latest)
	} else {
		m.list.replaceSubscriptions(m.latest)
	}
}

// announceLatest announces a newer value of valueSize bytes to all connections of the list.
func (l *connList) announceLatest(valueSize int) (t PostOutcomes) {
	for i, r := range l.refs {
		t.countPostOrCollectRefused(r, valueSize, r.AnnounceLatest(l.subscriptions[i], valueSize))
	}
	return t
}
