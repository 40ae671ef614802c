package engine

import "net/netip"

// This file has what a handler may do with its connection, and the calls into
// the handler. The root package documents the former for its users.

// Write appends p to the output.
func (c *Conn) Write(p []byte) (int, error) {
	if err := c.writable(len(p)); err != nil {
		return 0, err
	}
	rest := p
	if c.host.Direct != nil && len(p) >= c.host.DirectSize && c.out == nil && len(p) > 0 {
		rest = p[c.direct(p):]
	}
	if len(rest) > 0 {
		c.room().append(rest)
	}
	return len(p), nil
}

// direct sends p without keeping it, as far as the kernel takes it.
func (c *Conn) direct(p []byte) int {
	n := c.host.Direct(c, p)
	if n > 0 {
		c.host.Counters.Writes.Add(1)
		c.host.Counters.BytesOut.Add(int64(n))
		c.host.direct += n
	}
	return n
}

// endEvent forgets what was sent directly in this event.
func (c *Conn) endEvent() {
	if c.host.direct > 0 { // it is never, where workers might look
		c.host.direct = 0
	}
}

// WriteString is Write for a string.
func (c *Conn) WriteString(s string) (int, error) {
	if err := c.writable(len(s)); err != nil {
		return 0, err
	}
	if len(s) > 0 {
		c.room().appendString(s)
	}
	return len(s), nil
}

// writable says whether n bytes may be appended. Posted bytes have a bound of
// their own.
func (c *Conn) writable(n int) error {
	if c.is(closing|failed) || !c.is(open) {
		return ErrClosed
	}
	if n > c.host.Limits.MaxUnsent {
		return ErrTooLarge
	}
	if c.Pending()-int(c.owed)+c.host.direct+n > c.host.Limits.MaxUnsent {
		c.fail(ErrSlowConsumer)
		return ErrSlowConsumer
	}
	return nil
}

// Pending is the number of bytes of output that are not sent yet.
func (c *Conn) Pending() int {
	if c.out == nil {
		return 0
	}
	return c.out.Len()
}

// Paused says whether a handler that has input left to use is to stop and
// leave it: more output is owed than reading goes on for.
func (c *Conn) Paused() bool {
	return c.is(closing|failed) || c.owesMuch()
}

// MaxMessage is the limit of that name.
func (c *Conn) MaxMessage() int { return c.host.Limits.MaxMessage }

// Refused is how many bytes of the input the handler was offered before and did
// not use. It goes back to 0 when input is used.
func (c *Conn) Refused() int { return int(c.seen) }

// Owner numbers the connection's loop.
func (c *Conn) Owner() int { return c.host.Index }

// Outbound says whether the connection was dialled.
func (c *Conn) Outbound() bool { return c.is(outbound) }

// Peer is the other side's address.
func (c *Conn) Peer() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(c.peerAddr).Unmap(), c.peerPort)
}

// Value is what SetValue was given.
func (c *Conn) Value() any { return c.user }

// SetValue keeps v with the connection until Closed returns.
func (c *Conn) SetValue(v any) { c.user = v }

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
	c.host.Handler.Opened(c)
	returned = true
}

func (c *Conn) callReceived(in []byte) (used int) {
	returned := false
	defer c.contain(&returned)
	used = c.host.Handler.Received(c, in)
	returned = true
	return used
}

func (c *Conn) callEnded(rest []byte) (used int) {
	returned := false
	defer c.contain(&returned)
	used = c.host.Handler.Ended(c, rest)
	returned = true
	return used
}

func (c *Conn) callNudged() {
	n, ok := c.host.Handler.(Nudger)
	if !ok {
		return
	}
	returned := false
	defer c.contain(&returned)
	n.Nudged(c)
	returned = true
}

func (c *Conn) callClosed(why error) {
	returned := false
	defer c.contain(&returned)
	c.host.Handler.Closed(c, why)
	returned = true
}

// contain ends a panic in the handler: only this connection is closed. A handler
// that ends its goroutine would take a loop with all its connections along;
// that can't be stopped, so it is made loud.
func (c *Conn) contain(returned *bool) {
	if *returned {
		return
	}
	v := recover()
	if v == nil {
		panic("myriad: a handler has called runtime.Goexit, as testing.T.FailNow does; a handler must return")
	}
	c.fail(c.host.panicked(c, v))
}
