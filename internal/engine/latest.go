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
// need no mail and no room. It takes one when it owes nothing else, so a value that its
// peer has no room for is replaced until it has, and one that has begun to be sent is
// sent to its end. A Latest has a lock, under which it is said that there is a value,
// and one is taken: so the newest is never left behind, and none is sent twice.

// Topic is a value that is replaced by newer ones. Who sets it and tells connections of
// it does one after the other; they may take it meanwhile.
type Topic struct{ newest atomic.Pointer[value] }

type value struct {
	bytes  []byte
	number int64
}

// Set makes p, which is not changed any more, the newest value.
func (t *Topic) Set(p []byte) {
	number := int64(1)
	if last := t.newest.Load(); last != nil {
		number += last.number
	}
	t.newest.Store(&value{p, number})
}

// Latest is one connection's part in a topic.
type Latest struct {
	topic *Topic
	mail  Shared

	mu           sync.Mutex
	due          bool  // the connection is to take a value, or has mail about that
	unsubscribed bool  // it is to get no more
	announced    int64 // the last value that it was told of
	taken        int64 // the last one that it took
	replaced     int64 // values that it was told of and did not take, since it last took one
}

// NewLatest makes it for one connection.
func NewLatest(t *Topic) *Latest {
	l := &Latest{topic: t}
	l.mail.latest = l
	return l
}

// Leave says that the connection is to get no more values.
func (l *Latest) Leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unsubscribed = true
}

// isUnsubscribed says whether it has been told to leave.
func (l *Latest) isUnsubscribed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unsubscribed
}

// announce notes that there is a newer value. It says whether that needs mail, and how many
// others have been replaced.
func (l *Latest) announce() (mail bool, replaced int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.announced = l.topic.newest.Load().number
	switch {
	case l.taken == l.announced:
		return false, 0
	case l.due:
		l.replaced++
		return false, 1
	}
	l.due = true
	return true, 0
}

// withdraw takes that back, because the mail has found no room.
func (l *Latest) withdraw() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.due = false
}

// take gives the newest value, and how many were replaced since the last was taken; of
// those, so many nobody knew of.
func (l *Latest) take() (p []byte, replaced, unknown int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	newest := l.topic.newest.Load()
	unknown = newest.number - l.announced // it was not told of the newest yet
	replaced = l.replaced + unknown
	l.due, l.announced, l.taken, l.replaced = false, newest.number, newest.number, 0
	return newest.bytes, replaced, unknown
}

// missed is how many values were replaced since the last was taken.
func (l *Latest) missed() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.replaced
}

// Publish posts that the topic has a newer value, of size bytes, unless the connection
// has not taken the last one: that one is replaced.
func (r Ref) Publish(l *Latest, size int) error {
	switch {
	case r.Closed():
		return ErrClosed
	case size > r.c.host.Limits.MaxUnsent:
		return ErrTooLarge
	}
	mail, replaced := l.announce()
	if replaced > 0 {
		r.c.host.Counters.Add(Replaced, replaced)
	}
	if !mail {
		return nil
	}
	err := r.post(Request{Kind: MailLatest, Shared: &l.mail})
	if err != nil {
		l.withdraw()
	}
	return err
}

// queueValue notes that the connection is to take a value, or drops that if its direction has
// ended. Those of topics that it has left make room for others.
func (c *Conn) queueValue(l *Latest) {
	x := c.extra()
	if c.sendClosed() {
		_, replaced, unknown := l.take()
		x.dropped += replaced + 1
		c.host.Counters.Add(Replaced, unknown)
		c.host.Counters.Add(Dropped, 1)
		return
	}
	if len(x.values) == cap(x.values) {
		x.values = slices.DeleteFunc(x.values, func(l *Latest) bool { return l.isUnsubscribed() })
	}
	x.values = append(x.values, l)
}

// mayTakeValues says whether it is time to take values.
func (c *Conn) mayTakeValues() bool {
	return c.more != nil && len(c.more.values) > 0 && !c.hasOutput() && !c.upgrades()
}

// takeValues makes output of the newest values, as many as fit into a buffer, but at
// least one.
func (c *Conn) takeValues() {
	x, n := c.more, 0
	for n < len(x.values) && c.Pending() < pieceSize && !c.is(failed) {
		l := x.values[n]
		n++
		if l.isUnsubscribed() {
			continue
		}
		p, replaced, unknown := l.take()
		x.dropped += replaced
		c.host.Counters.Add(Replaced, unknown)
		if len(p) <= c.host.Limits.MaxUnsent {
			c.passDown(p)
		}
	}
	if x.values = slices.Delete(x.values, 0, n); len(x.values) == 0 {
		x.values = nil
	}
}

// Miss counts messages that the connection has not got, where its owner has not seen
// that.
func (c *Conn) Miss(n int64) {
	if n > 0 {
		c.extra().dropped += n
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
	for _, l := range c.more.values {
		n += l.missed()
	}
	return n
}
