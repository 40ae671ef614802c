package engine

import "net/netip"

// This file has what a handler may do with its connection, and the calls into
// the handler. The root package documents the former for its users.

// Write appends p to the output.
func (c *Conn) Write(p []byte) (int, error) {
	if err := c.writable(len(p)); err != nil {
		return 0, err
	}
	if c.layer() != nil {
		c.passDown(p)
		return len(p), nil
	}
	rest := p
	if c.host.Direct != nil && len(p) >= c.host.DirectSize && c.out == nil && len(p) > 0 {
		rest = p[c.direct(p):]
	}
	c.Append(rest)
	return len(p), nil
}

// direct sends p without keeping it, as far as the kernel takes it.
func (c *Conn) direct(p []byte) int {
	n := c.host.Direct(c, p)
	if n > 0 {
		c.host.Counters.Add(Writes, 1)
		c.host.Counters.Add(BytesOut, int64(n))
		c.host.direct += n
	}
	return n
}

// endEvent begins an upgrade that was asked for in this event, and forgets what was sent directly in this event. If that has made it too
// much, and the handler was told so, it is told that it is not any more.
func (c *Conn) endEvent() {
	if c.upgrades() {
		c.beginUpgrade()
	}
	if c.host.direct == 0 { // as always, where workers might look
		return
	}
	c.host.direct = 0
	c.relieve()
}

// Cast writes a message to all, unless the handler has not heard of the
// connection, and says whether there is something to send.
func (c *Conn) Cast(p []byte) bool {
	if c.is(greeting|fresh|closing|finishing|relayed) || !c.is(open) {
		return false
	}
	_, _ = c.Write(p) // an error has been counted, or the connection closes
	c.endEvent()
	return true
}

// WriteString is Write for a string.
func (c *Conn) WriteString(s string) (int, error) {
	if err := c.writable(len(s)); err != nil {
		return 0, err
	}
	if c.layer() != nil {
		c.passDown([]byte(s))
	} else if len(s) > 0 {
		push(c.host, c.room(len(s)), s)
	}
	return len(s), nil
}

// writable says whether n bytes may be appended. Posted bytes have a bound of
// their own.
func (c *Conn) writable(n int) error {
	if c.is(closing|failed|finishing) || !c.is(open) {
		return ErrClosed
	}
	if c.upgrades() {
		return ErrBadUse
	}
	if n > c.host.Limits.MaxUnsent {
		return ErrTooLarge
	}
	if c.Pending()-c.posted()+c.host.direct+n > c.host.Limits.MaxUnsent {
		if c.host.DropMessages {
			c.host.Counters.Add(Dropped, 1)
			return ErrFull
		}
		c.fail(ErrSlowConsumer)
		return ErrSlowConsumer
	}
	return nil
}

// posted is how much of the output came from outside.
func (c *Conn) posted() int {
	if c.out == nil {
		return 0
	}
	return c.out.owed
}

// Pending is the number of bytes of output that are not sent yet.
func (c *Conn) Pending() int {
	if c.out == nil {
		return 0
	}
	return c.out.Len()
}

// Holds is how many bytes of memory the connection's buffers take, with what its
// layer keeps.
func (c *Conn) Holds() (n int) {
	if c.more != nil {
		n = c.more.held
	}
	for _, b := range []*Buffer{c.in, c.out} {
		if b != nil {
			n += b.room()
		}
	}
	return n
}

// Waiting is how many bytes of what it Holds are in use.
func (c *Conn) Waiting() (n int) {
	if c.more != nil {
		n = c.more.held
	}
	for _, b := range []*Buffer{c.in, c.out} {
		if b != nil {
			n += b.Len()
		}
	}
	return n
}

// Doomed says whether the connection is about to be closed without sending what it
// owes.
func (c *Conn) Doomed() bool { return c.is(failed) }

// Paused says whether a handler that has input left to use is to stop and
// leave it: more output is owed than reading goes on for, or it does not listen.
func (c *Conn) Paused() bool {
	return c.is(closing|failed) || c.waits()
}

// Listen says whether the handler listens to the peer; it does at first. While it
// does not, nothing is read, so that the kernel's buffers fill up and the peer has
// to wait: that is not counted as its silence. Received and Ended are not called;
// what has been read already, or is being read, is kept, as much as a few buffers,
// and so is what the call at hand leaves unused. All of it is offered when the
// handler listens again, as if it were new. It is sent to as before, and closes as
// before, but for the peer's end and a drain, which wait for input that is kept.
// A transport that breaks may close it, with what the kernel had. It is for the
// owner, in a call of the handler.
func (c *Conn) Listen(on bool) {
	switch {
	case on && c.is(deaf) && !c.detaches():
		c.state &^= deaf
		c.attentive()
	case !on && c.is(open):
		c.state |= deaf
	}
}

// Duplex says whether the connection is read from whatever it owes, and a drain waits for
// the peer's end also when our direction is shut: for a handler that bounds both
// directions itself. It does not at first.
func (c *Conn) Duplex(on bool) {
	if on && c.is(open) {
		c.extra().duplex = true
	} else if c.more != nil {
		c.more.duplex = false
		c.shrink()
	}
}

// ReadsOn says whether neither direction waits for the other.
func (c *Conn) ReadsOn() bool { return c.is(relayed) || c.more != nil && c.more.duplex }

// Deaf says that the handler does not listen.
func (c *Conn) Deaf() bool { return c.is(deaf) }

// CountMessages counts messages that were cut out of the input.
func (c *Conn) CountMessages(n int) {
	if n > 0 {
		c.host.Counters.Add(Messages, int64(n))
	}
}

// Limits are those of the connection's host; they do not change.
func (c *Conn) Limits() *Limits { return &c.host.Limits }

// MaxMessage is the limit of that name.
func (c *Conn) MaxMessage() int { return c.host.Limits.MaxMessage }

// Refused is how many bytes of the input the handler was offered before and did
// not use. It goes back to 0 when input is used.
func (c *Conn) Refused() int {
	if c.is(beginning) {
		return 0
	}
	return int(c.seen)
}

// Server is Config.Owner.
func (c *Conn) Server() any { return c.host.Owner }

// Owner numbers the connection's loop.
func (c *Conn) Owner() int { return c.host.Index }

// Outbound says whether the connection was dialled.
func (c *Conn) Outbound() bool { return c.is(outbound) }

// Peer is the other side's address; the zero value if it has no port.
func (c *Conn) Peer() netip.AddrPort {
	if c.peerPort == 0 && c.peerAddr == [16]byte{} {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(netip.AddrFrom16(c.peerAddr).Unmap(), c.peerPort)
}

// Local is our side's address; the zero value if it has no port, or is not known any
// more. It is for the owner, not for a worker.
func (c *Conn) Local() netip.AddrPort {
	if c.host.Local == nil || !c.is(open) {
		return netip.AddrPort{}
	}
	return c.host.Local(c)
}

// name is the peer in logs.
func (c *Conn) name() string {
	if p := c.Peer(); p.IsValid() {
		return p.String()
	}
	return "unix socket"
}

// Ref names the connection, and names it still in Closed.
func (c *Conn) Ref() Ref {
	gen := c.mark.generation()
	if c.is(closing) {
		gen--
	}
	return Ref{c: c, gen: gen}
}

func (c *Conn) callOpened() {
	returned := false
	defer c.contain(&returned)
	c.handler().Opened(c)
	returned = true
}

// callReceived offers input, to be shed if there is a reason.
func (c *Conn) callReceived(in []byte, shed error) (used int) {
	returned := false
	defer c.contain(&returned)
	if shed != nil {
		used = c.host.Shed(c, in, shed)
	} else {
		used = c.handler().Received(c, in)
	}
	returned = true
	return used
}

func (c *Conn) callEnded(rest []byte) (used int) {
	returned := false
	defer c.contain(&returned)
	used = c.handler().Ended(c, rest)
	returned = true
	return used
}

func (c *Conn) callNudged() {
	if n, ok := c.handler().(Nudger); ok {
		c.call(n.Nudged)
	}
}

// Touched calls the handler's Nudged, if it has heard of the connection and nothing
// closes that.
func (c *Conn) Touched() {
	if c.is(open) && !c.is(greeting|fresh|closing|failed) {
		c.callNudged()
		c.endEvent()
	}
}

// call calls what is seldom called.
func (c *Conn) call(f func(*Conn)) {
	returned := false
	defer c.contain(&returned)
	f(c)
	returned = true
}

// callClosed tells the handler why the connection has closed. A panic there comes
// too late to be the reason. One that has closed before a worker called Opened is
// opened first, so that each of the two comes once.
func (c *Conn) callClosed() {
	why := c.more.why
	defer func() { c.more.why = why }()
	if c.is(fresh) {
		c.state &^= fresh
		c.callOpened()
	}
	returned := false
	defer c.contain(&returned)
	c.handler().Closed(c, why)
	returned = true
}

// contain ends a panic in the handler: only this connection is closed. A handler
// that ends its goroutine would take a loop with all its connections along, or a
// worker with this one; that can't be stopped, so it is made loud, on a goroutine
// where no pool contains it.
func (c *Conn) contain(returned *bool) {
	if *returned {
		return
	}
	v := recover()
	if v == nil {
		go panic("myriad: a handler has called runtime.Goexit, as testing.T.FailNow does; a handler must return")
		select {}
	}
	c.fail(c.host.panicked(c, v))
}
