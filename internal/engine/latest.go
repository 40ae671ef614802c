package engine

import (
	"slices"
	"sync/atomic"
)

// This file is how a connection gets values of which only the newest counts.
//
// A Topic has the newest value. What a connection is told, by mail, is only that there
// is one (Latest.due): until it has taken a value, newer ones need no mail and no
// room. It takes one when it owes nothing else, so a value that its peer has no room
// for is replaced until it has, and one that has begun to be sent is sent to its end.
// due is taken back before the value is looked at: a value that comes afterwards
// sends mail of its own, so the newest is never left behind.

// Topic is a value that is replaced by newer ones. Its methods are safe for concurrent
// use.
type Topic struct{ newest atomic.Pointer[[]byte] }

// Set makes p, which is not changed any more, the newest value.
func (t *Topic) Set(p []byte) { t.newest.Store(&p) }

// Latest is one connection's part in a topic.
type Latest struct {
	topic    *Topic
	mail     Shared
	due      atomic.Bool  // the connection is to take a value, or has mail about that
	left     atomic.Bool  // it is to get no more
	replaced atomic.Int64 // values that it has not got, since it has last got one
}

// NewLatest makes it for one connection.
func NewLatest(t *Topic) *Latest {
	l := &Latest{topic: t}
	l.mail.latest = l
	return l
}

// Leave says that the connection is to get no more values.
func (l *Latest) Leave() { l.left.Store(true) }

// Publish posts that there is a newer value of size bytes, unless the connection has
// not taken the last one: that one is replaced.
func (r Ref) Publish(l *Latest, size int) error {
	switch {
	case r.Closed():
		return ErrClosed
	case size > r.c.host.Limits.MaxUnsent:
		return ErrTooLarge
	case !l.due.CompareAndSwap(false, true):
		l.replaced.Add(1)
		r.c.host.Counters.Add(Replaced, 1)
		return nil
	}
	err := r.post(Request{Kind: MailLatest, Shared: &l.mail})
	if err != nil {
		l.due.Store(false)
	}
	return err
}

// awaits notes that the connection is to take a value. Those of topics that it has left
// make room for others.
func (c *Conn) awaits(l *Latest) {
	x := c.extra()
	if len(x.latest) == cap(x.latest) {
		x.latest = slices.DeleteFunc(x.latest, func(l *Latest) bool { return l.left.Load() })
	}
	x.latest = append(x.latest, l)
}

// mayTake says whether it is time to take values.
func (c *Conn) mayTake() bool { return c.more != nil && c.out == nil && len(c.more.latest) > 0 }

// takeLatest makes output of the newest values, as many as fit into a buffer, but at
// least one.
func (c *Conn) takeLatest() {
	x, n := c.more, 0
	for n < len(x.latest) && c.Pending() < pieceSize && !c.is(failed) {
		l := x.latest[n]
		n++
		if l.left.Load() {
			continue
		}
		l.due.Store(false)
		x.dropped += l.replaced.Swap(0)
		if p := *l.topic.newest.Load(); len(p) <= c.host.Limits.MaxUnsent {
			c.passDown(p)
		}
	}
	if x.latest = slices.Delete(x.latest, 0, n); len(x.latest) == 0 {
		x.latest = nil
	}
}

// Missed is how many messages the connection has not got because its peer reads too
// slowly: those that its output had no room for, and values that newer ones have
// replaced.
func (c *Conn) Missed() (n int64) {
	if c.more == nil {
		return 0
	}
	n = c.more.dropped
	for _, l := range c.more.latest {
		n += l.replaced.Load()
	}
	return n
}
