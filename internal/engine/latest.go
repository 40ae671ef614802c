package engine

import (
	"slices"
	"sync"
	"sync/atomic"
)

// This file is how a connection gets values of which only the newest counts.
//
// A Topic has the newest value, and values are numbered. What a connection is told, by
// mail, is only that there is one (Latest.due): until it has taken a value, newer ones
// need no mail and no room. It takes one when it has nothing else to send, so a value that its
// peer has no room for is replaced until it has, and one that has begun to be sent is
// sent to its end. A Latest has a lock, under which it is said that there is a value,
// and one is taken: so the newest is never left behind, and none is sent twice.

// LatestValue is a value that is replaced by newer ones. Who sets it and tells connections of
// it does one after the other; they may take it meanwhile.
type LatestValue struct {
	newest atomic.Pointer[versionedValue]
}

type versionedValue struct {
	bytes  []byte
	number int64
}

// Set makes p, which is not changed any more, the newest value.
func (t *LatestValue) Set(p []byte) {
	number := int64(1)
	if last := t.newest.Load(); last != nil {
		number += last.number
	}
	t.newest.Store(&versionedValue{p, number})
}

// LatestSubscription is one connection's part in a topic.
type LatestSubscription struct {
	value   *LatestValue
	request Shared

	mu           sync.Mutex
	requested    bool  // the connection is to take a value, or has mail about that
	unsubscribed bool  // it is to get no more
	announced    int64 // the last value that was announced to it
	taken        int64 // the last one that it took
	replaced     int64 // values that were announced and not taken, since it last took one
}

// NewLatestSubscription makes it for one connection.
func NewLatestSubscription(v *LatestValue) *LatestSubscription {
	l := &LatestSubscription{value: v}
	l.request.latest = l
	return l
}

// Unsubscribe says that the connection is to get no more values.
func (l *LatestSubscription) Unsubscribe() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unsubscribed = true
}

// isUnsubscribed says whether Leave was called.
func (l *LatestSubscription) isUnsubscribed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unsubscribed
}

// announce notes that there is a newer value. It says whether that needs mail, and how many
// others have been replaced.
func (l *LatestSubscription) announce() (needsRequest bool, replaced int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.announced = l.value.newest.Load().number
	switch {
	case l.taken == l.announced:
		return false, 0
	case l.requested:
		l.replaced++
		return false, 1
	}
	l.requested = true
	return true, 0
}

// cancelAnnouncement takes that back, because the mail has found no room.
func (l *LatestSubscription) cancelAnnouncement() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requested = false
}

// takeNewest gives the newest value, and how many were replaced since the last was taken; of
// those, how many were never announced.
func (l *LatestSubscription) takeNewest() (p []byte, replaced, unannounced int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	newest := l.value.newest.Load()
	unannounced = newest.number - l.announced // the newest was not announced yet
	replaced = l.replaced + unannounced
	l.requested, l.announced, l.taken, l.replaced = false, newest.number, newest.number, 0
	return newest.bytes, replaced, unannounced
}

// replacedCount is how many values were replaced since the last was taken.
func (l *LatestSubscription) replacedCount() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.replaced
}

// SendLatest posts that the topic has a newer value, of size bytes, unless the connection
// has not taken the last one: that one is replaced.
func (r Ref) SendLatest(sub *LatestSubscription, size int) error {
	switch {
	case r.IsClosed():
		return ErrClosed
	case size > r.c.runtime.Limits.MaxUnsent:
		return ErrTooLarge
	}
	needsRequest, replaced := sub.announce()
	if replaced > 0 {
		r.c.runtime.Counters.Add(Replaced, replaced)
	}
	if !needsRequest {
		return nil
	}
	err := r.post(Request{Kind: RequestLatest, Shared: &sub.request})
	if err != nil {
		sub.cancelAnnouncement()
	}
	return err
}

// queueLatest notes that the connection is to take a value, or drops that if its direction has
// ended. Those of topics that it has left make room for others.
func (c *Conn) queueLatest(sub *LatestSubscription) {
	x := c.ensureExtra()
	if c.isSendClosed() {
		_, replaced, unknown := sub.takeNewest()
		x.droppedMessages += replaced + 1
		c.runtime.Counters.Add(Replaced, unknown)
		c.runtime.Counters.Add(Dropped, 1)
		return
	}
	if len(x.latestQueue) == cap(x.latestQueue) {
		x.latestQueue = slices.DeleteFunc(x.latestQueue, func(sub *LatestSubscription) bool { return sub.isUnsubscribed() })
	}
	x.latestQueue = append(x.latestQueue, sub)
}

// canWriteLatest says whether it is time to take values.
func (c *Conn) canWriteLatest() bool {
	return c.extra != nil && len(c.extra.latestQueue) > 0 && !c.hasOutput() && !c.hasPendingLayer()
}

// writeLatestValues makes output of the newest values, as many as fit into a buffer, but at
// least one.
func (c *Conn) writeLatestValues() {
	x, n := c.extra, 0
	for n < len(x.latestQueue) && c.UnsentBytes() < maxPieceSize && !c.is(failed) {
		l := x.latestQueue[n]
		n++
		if l.isUnsubscribed() {
			continue
		}
		p, replaced, unknown := l.takeNewest()
		x.droppedMessages += replaced
		c.runtime.Counters.Add(Replaced, unknown)
		if len(p) <= c.runtime.Limits.MaxUnsent {
			c.writeThroughLayer(p)
		}
	}
	if x.latestQueue = slices.Delete(x.latestQueue, 0, n); len(x.latestQueue) == 0 {
		x.latestQueue = nil
	}
}

// AddMissed counts messages that the connection has not got, where its owner has not seen
// that.
func (c *Conn) AddMissed(n int64) {
	if n > 0 {
		c.ensureExtra().droppedMessages += n
	}
}

// MissedMessages is how many messages the connection has not got because its peer reads too
// slowly: those that its output had no room for, and values that newer ones have
// replaced.
func (c *Conn) MissedMessages() (n int64) {
	if c.extra == nil {
		return 0
	}
	n = c.extra.droppedMessages
	for _, l := range c.extra.latestQueue {
		n += l.replacedCount()
	}
	return n
}
