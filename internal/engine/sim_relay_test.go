package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"syscall"
)

func (s *sim) handlerRelays(l *life) {
	o := s.past[s.dice.intN(len(s.past))]
	if live := s.lives[s.dice.intN(simSlots)]; live != nil {
		o = live
	}
	if !o.known {
		return
	}
	c := l.conn
	over, was := l.hasStoppedWriting(), c.is(relayed)
	err := c.RequestRelayWith(o.ref)
	if errors.Is(err, ErrFull) && len(s.posts) >= 2*simMaxMail {
		return
	}
	wrong := o == l || l.upgrading || l.parting || was || l.joining
	if !s.checkCall(l, fmt.Sprintf("RequestRelayWith %v", o), err, over || !s.acceptsRequests(o), wrong) {
		return
	}
	l.joining = true
	l.related, o.related = append(l.related, o), append(o.related, l)
	l.allowReasons(ErrClosed, ErrBadUse)
	o.allowReasons(ErrClosed, ErrBadUse)
}

func (s *sim) findJoinedRelays() {
	for _, l := range s.lives {
		if l == nil || l.mate != nil || !l.conn.is(relayed) || l.conn.is(closing) {
			continue
		}
		if to := l.conn.remotePartner(); to != nil {
			l.mate = s.past[slices.IndexFunc(s.past, func(o *life) bool { return o.known && o.ref == to.ref })]
		} else {
			l.mate = s.lives[l.conn.refusedBytes]
		}
		l.joining = false
		l.heard, l.relieved = s.now, s.now
		s.log("%v: joined with %v", l, l.mate)
		s.check(l.mate != nil && (l.mate.mate == nil || l.mate.mate == l), "%v: joined with %v, who is joined with another one", l, l.mate)
	}
}

// sameLoop reports whether relay partners can access each other directly.
func (s *sim) sameLoop() bool { return s.host.Loop != nil }

// pullRelayed records what a relay has written to a connection, of which at least the given number
// of bytes is not sent.
func (s *sim) pullRelayed(l *life, least int) {
	if !s.sameLoop() || l.flushing {
		return // it is posted, or comes after requests
	}
	if s.findJoinedRelays(); l.mate == nil {
		return
	}
	n := max(len(l.wire)+l.conn.UnsentAndDroppedBytes(), len(l.wire)+least) - len(l.wrote)
	if n <= 0 {
		return
	}
	from := l.mate
	l.expectRaw(s, l.encodeForWire(s.takeRelayedInput(from, n)))
	l.heard, from.heard = s.now, s.now
}

// takeRelayedInput takes the next n bytes of a connection's input for its partner.
func (s *sim) takeRelayedInput(from *life, n int) []byte {
	s.check(from.used+n <= from.plaintextReceived(), "%v: %d bytes are relayed, of %d that have arrived", from, from.used+n, from.plaintextReceived())
	p := from.sent[from.used : from.used+n]
	from.used += n
	from.refused = 0
	return p
}

// takeRelayedRequests is takeRelayedInput for posted bytes.
func (s *sim) takeRelayedRequests(to *life, p []byte) {
	s.findJoinedRelays()
	from := to.mate
	if from == nil { // it has not heard of the relay yet
		for _, l := range s.lives {
			if l != nil && l.mate == to {
				from = l
			}
		}
	}
	s.check(from != nil, "%v: gets %q from nobody", to, p)
	s.check(bytes.Equal(s.takeRelayedInput(from, len(p)), p), "%v: %q is relayed, want what %v has received", to, p, from)
	from.heard = s.now
}

// sendToPartner is Runtime.SendToPartner.
func (s *sim) sendToPartner(c *Conn, p []byte) int {
	s.findJoinedRelays()
	l := s.lives[c.Slot()]
	if l == nil || l.shut || !slices.ContainsFunc(s.lives, func(o *life) bool {
		return o != nil && o.conn.remotePartner() != nil && o.conn.remotePartner().ref == l.ref
	}) {
		return 0 // its socket is closed, or its direction
	}
	s.check(len(l.wire) == len(l.wrote) && c.refState.postedBytes() == 0, "%v: gets %d bytes past %d that wait", l, len(p), len(l.wrote)-len(l.wire))
	s.check(l.layer == nil && !l.shut && !c.is(closingWrite), "%v: gets bytes past its layer or its end: state %b", l, c.state)
	if l.reset {
		return 0
	}
	p = p[:min(l.room, len(p))]
	s.takeRelayedRequests(l, p)
	l.expectRaw(s, p)
	l.heard = s.now
	return s.kernelTakes(l, p)
}

// checkRelay checks what a finished relay has lost: nothing if both directions ended in order.
func (s *sim) checkRelay(l *life) {
	o := l.mate
	if o == nil || !l.closed || !o.closed {
		return
	}
	for _, l := range []*life{l, o} {
		if !l.told || !l.mate.told || !errors.Is(l.why, io.EOF) || !errors.Is(l.mate.why, io.EOF) {
			return
		}
	}
	for _, l := range []*life{l, o} {
		s.check(l.used == len(l.sent), "%v: closed in order with %d of %d bytes relayed", l, l.used, len(l.sent))
		s.checkComplete(l)
	}
}

func (s *sim) handlerDetaches(l *life) {
	c := l.conn
	err := c.Detach(func(nc net.Conn, unread []byte) { s.checkDetached(l, nc, unread) })
	if s.checkCall(l, "Detach", err, l.hasStoppedWriting(), l.layer != nil || !l.isSettled()) {
		l.parting, l.deaf = true, true
		l.allowReasons(ErrDetached)
	}
}

type detachedConn struct {
	net.Conn
	closed bool
}

func (o *detachedConn) Close() error { o.closed = true; return nil }

// detachConn is the driver's part of Detach.
func (s *sim) detachConn(l *life) {
	s.check(l.parting && !l.taken, "%v: detached, and nobody wanted it", l)
	s.checkComplete(l)
	s.check(l.waiting == 0, "%v: detached with %d accepted posts in the mailbox", l, l.waiting)
	if s.dice.intN(8) == 0 {
		s.log("%v: can't be detached", l)
		l.allowReasons(syscall.EMFILE)
		l.conn.CompleteDetachOrAbort(nil, syscall.EMFILE)
		return
	}
	nc, panics := &detachedConn{}, s.panics
	l.conn.CompleteDetachOrAbort(nc, nil)
	s.check(l.taken, "%v: was detached, and its function was not called", l)
	s.check(nc.closed == (s.panics > panics), "%v: closed by the engine: %v, but panicked: %v", l, nc.closed, s.panics > panics)
}

func (s *sim) checkDetached(l *life, nc net.Conn, unread []byte) {
	s.check(!l.taken && !l.closed && nc != nil, "%v: taken over twice, or after the end", l)
	s.check(bytes.Equal(unread, l.sent[l.used:l.arrived]), "%v: taken over with %q unused, want %q", l, unread, l.sent[l.used:l.arrived])
	l.taken = true
	s.handlerWrites(l, []byte("too late"))
	s.randomPanic(l)
}
