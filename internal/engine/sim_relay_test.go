package engine

import (
	"bytes"
	"errors"
	"io"
	"net"
	"slices"
	"syscall"
)

// relays has the handler join its connection with another one, and knows what the answer
// has to be.
func (s *sim) relays(l *life) {
	o := s.past[s.dice.roll(len(s.past))]
	if live := s.lives[s.dice.roll(simSlots)]; live != nil {
		o = live
	}
	if !o.known {
		return
	}
	c := l.conn
	over, was := l.writesNoMore(), c.is(relayed)
	err := c.Relay(o.ref)
	s.log("%v: relay with %v: %v", l, o, err)
	switch {
	case over || !s.takesMail(o):
		s.check(errors.Is(err, ErrClosed), "%v: Relay of what has closed gives %v", l, err)
		return
	case o == l || l.upgrading || l.parting || was || l.joining:
		s.check(errors.Is(err, ErrBadUse), "%v: Relay of what can't be relayed gives %v", l, err)
		return
	case err != nil:
		s.check(errors.Is(err, ErrFull) && len(s.posts) >= 2*simMaxMail, "%v: Relay gives %v", l, err)
		return
	}
	l.joining = true
	l.related, o.related = append(l.related, o), append(o.related, l)
	l.cause(ErrClosed, ErrBadUse)
	o.cause(ErrClosed, ErrBadUse)
}

// joined finds out who has been joined since it was last asked.
func (s *sim) joined() {
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

// near says that connections of a relay reach each other at once.
func (s *sim) near() bool { return s.host.Loop != nil }

// pull notes what a relay has written to a connection, of which at least so many bytes
// are not on the wire.
func (s *sim) pull(l *life, least int) {
	if !s.near() || l.flushing {
		return // it comes by mail, or after mail
	}
	if s.joined(); l.mate == nil {
		return
	}
	n := max(len(l.wire)+l.conn.UnsentBytes(), len(l.wire)+least) - len(l.wrote)
	if n <= 0 {
		return
	}
	from := l.mate
	l.appends(s, l.over(s.relayed(from, n)))
	l.heard, from.heard = s.now, s.now
}

// relayed takes the next n bytes of a connection's input for the one that it is joined
// with.
func (s *sim) relayed(from *life, n int) []byte {
	s.check(from.used+n <= from.plain(), "%v: %d bytes are relayed, of %d that have arrived", from, from.used+n, from.plain())
	p := from.sent[from.used : from.used+n]
	from.used += n
	from.refused = 0
	return p
}

// relayedByMail is relayed where they are posted.
func (s *sim) relayedByMail(to *life, p []byte) {
	s.joined()
	from := to.mate
	if from == nil { // it has not heard of the relay yet
		for _, l := range s.lives {
			if l != nil && l.mate == to {
				from = l
			}
		}
	}
	s.check(from != nil, "%v: gets %q from nobody", to, p)
	s.check(bytes.Equal(s.relayed(from, len(p)), p), "%v: %q is relayed, want what %v has received", to, p, from)
	from.heard = s.now
}

// bypass is Host.Pass: what one connection of a relay has received goes to the socket of
// the other one.
func (s *sim) bypass(c *Conn, p []byte) int {
	s.joined()
	l := s.lives[c.Slot()]
	if l == nil || l.shut || !slices.ContainsFunc(s.lives, func(o *life) bool {
		return o != nil && o.conn.remotePartner() != nil && o.conn.remotePartner().ref == l.ref
	}) {
		return 0 // its socket is closed, or its direction
	}
	s.check(len(l.wire) == len(l.wrote) && c.refState.postedBytes() == 0, "%v: gets %d bytes past %d that wait", l, len(p), len(l.wrote)-len(l.wire))
	s.check(l.layer == nil && !l.shut && !c.is(closingWrite), "%v: gets bytes past its layer or its end: state %b", l, c.state)
	n := min(l.room, len(p))
	if l.reset {
		n = 0
	}
	s.log("%v: gets %d of %d bytes past its owner", l, n, len(p))
	s.relayedByMail(l, p[:n])
	l.appends(s, p[:n])
	l.wire = append(l.wire, p[:n]...)
	l.room -= n
	l.heard = s.now
	return n
}

// checkRelay checks what two connections have lost whose relay is over: nothing if both
// directions have ended in order.
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

// detaches has the handler give up its connection.
func (s *sim) detaches(l *life) {
	c := l.conn
	err := c.Detach(func(nc net.Conn, unread []byte) { s.takesOver(l, nc, unread) })
	s.log("%v: is given up: %v", l, err)
	switch {
	case l.writesNoMore():
		s.check(errors.Is(err, ErrClosed), "%v: Detach after the end gives %v", l, err)
	case l.layer != nil || !l.settled():
		s.check(errors.Is(err, ErrBadUse), "%v: Detach gives %v", l, err)
	default:
		s.check(err == nil, "%v: Detach gives %v", l, err)
		l.parting, l.deaf = true, true
		l.cause(ErrDetached)
	}
}

// outlet is what a connection becomes in package net.
type outlet struct {
	net.Conn
	closed bool
}

func (o *outlet) Close() error { o.closed = true; return nil }

// detach is the driver's part.
func (s *sim) detach(l *life) {
	s.check(l.parting && !l.taken, "%v: detached, and nobody wanted it", l)
	s.checkComplete(l)
	s.check(l.waiting == 0, "%v: detached with %d accepted posts in the mailbox", l, l.waiting)
	if s.dice.roll(8) == 0 {
		s.log("%v: can't be detached", l)
		l.cause(syscall.EMFILE)
		l.conn.OnDetached(nil, syscall.EMFILE)
		return
	}
	nc, panics := &outlet{}, s.panics
	l.conn.OnDetached(nc, nil)
	s.check(l.taken, "%v: was detached, and its function was not called", l)
	s.check(nc.closed == (s.panics > panics), "%v: closed by the engine: %v, but panicked: %v", l, nc.closed, s.panics > panics)
	if !nc.closed {
		s.detached = append(s.detached, l)
	}
}

func (s *sim) takesOver(l *life, nc net.Conn, unread []byte) {
	s.check(!l.taken && !l.closed && nc != nil, "%v: taken over twice, or after the end", l)
	s.check(bytes.Equal(unread, l.sent[l.used:l.arrived]), "%v: taken over with %q unused, want %q", l, unread, l.sent[l.used:l.arrived])
	l.taken = true
	s.write(l, []byte("too late"))
	s.mayPanic(l)
}

// adopt opens a connection that package net has had. The same peer goes on, and what it
// had sent and nobody used has been read already.
func (s *sim) adopt(slot int) {
	old := s.detached[0]
	s.detached = s.detached[1:]
	l := s.openLife(slot, old.room, false)
	s.log("%v: is %v, adopted", l, old)
	l.fin, l.reset = old.fin, old.reset
	l.sent = bytes.Clone(old.sent[old.used:])
	l.raw = append(l.raw, l.over(l.sent)...)
	read := min(old.arrived-old.used, len(l.raw))
	if read > 0 {
		s.arrive(l, read)
		l.rude = max(l.rude, read)
	}
	s.drive(l)
}
