package engine

import (
	"net/netip"
	"runtime/debug"
)

// This file has what a handler may do with its connection, and the calls into
// the handler. Package tcp documents the former for its users.

// Write appends p to the output.
func (c *Conn) Write(p []byte) (int, error) {
	if err := c.writable(len(p)); err != nil {
		return 0, err
	}
	switch {
	case c.layer() != nil:
		c.passDown(p)
	case c.mayGather(len(p), 1):
		c.putLarge(p)
	default:
		c.Append(p)
	}
	return len(p), nil
}

// Cast writes messages to all, and all of them in one piece if that fits, unless the
// handler has not heard of the connection. It says whether there may be something to
// do. Where nothing is unsent they are sent at once.
func (c *Conn) Cast(all []byte, each []*Shared) bool {
	if !c.takesBroadcasts() {
		return false
	}
	if c.Pending()-c.posted()+len(all) > c.host.Limits.MaxUnsent {
		for _, m := range each {
			_, _ = c.Write(m.Bytes) // an error has been counted, or the connection closes
		}
	} else {
		if c.host.Direct != nil && !c.hasOutput() && c.layer() == nil && len(all) > 0 {
			all = all[c.gather([][]byte{all}):]
		}
		c.passDown(all)
	}
	c.endEvent()
	return true
}

// takesBroadcasts says whether broadcasts are for the connection.
func (c *Conn) takesBroadcasts() bool {
	return c.is(open) && !c.is(greeting|openPending|closing|closingWrite|relayed)
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
	if c.is(closing|failed|closingWrite) || !c.is(open) {
		return ErrClosed
	}
	if c.upgrades() {
		return ErrBadUse
	}
	if n > c.host.Limits.MaxUnsent {
		return ErrTooLarge
	}
	if c.unsent()-c.posted()+c.direct()+n > c.host.Limits.MaxUnsent {
		if c.host.DropMessages {
			c.miss()
			return ErrFull
		}
		c.fail(ErrSlowConsumer)
		return ErrSlowConsumer
	}
	return nil
}

// miss counts a message that the output had no room for.
func (c *Conn) miss() {
	c.host.Counters.Add(Dropped, 1)
	c.extra().dropped++
}

// posted is how much of the output came from outside.
func (c *Conn) posted() (n int) {
	if c.out != nil {
		n = c.out.owed
	}
	return n + c.files().sum(func(b *Buffer) int { return b.owed })
}

// unsent is the number of bytes of output in memory.
func (c *Conn) unsent() (n int) {
	if c.out != nil {
		n = c.out.Len()
	}
	return n + c.files().sum((*Buffer).Len)
}

// Pending is the number of bytes of output that are not sent yet, those of files
// too, or that were dropped when the connection failed.
func (c *Conn) Pending() (n int) {
	if c.more != nil {
		n = c.more.unsent
	}
	return n + c.unsent() + c.files().bytes()
}

// Holds is how many bytes of memory the connection's buffers take, with what its
// layer keeps.
func (c *Conn) Holds() int { return c.memory((*Buffer).room) }

// Waiting is how many bytes of what it Holds are in use.
func (c *Conn) Waiting() int { return c.memory((*Buffer).Len) }

func (c *Conn) memory(size func(*Buffer) int) (n int) {
	if c.more != nil {
		n = c.more.layerBytes + c.more.held
		if c.more.upgrade != nil {
			n += c.more.upgrade.held
		}
	}
	for _, b := range []*Buffer{c.in, c.out} {
		if b != nil {
			n += size(b)
		}
	}
	return n + c.files().sum(size)
}

// Aborted says whether the connection is about to be closed without sending what it
// owes.
func (c *Conn) Aborted() bool { return c.is(failed) }

// Paused says whether a handler that has input left to use is to stop and
// leave it: more output is unsent than reading goes on for, or it does not listen.
func (c *Conn) Paused() bool {
	return c.is(closing|failed) || c.inputPaused()
}

// Listen says whether the handler listens to the peer; it does at first. While it
// does not, nothing is read, so that the kernel's buffers fill up and the peer has
// to wait: that is not counted as its silence. Received and Ended are not called;
// what has been read already, or is being read, is kept, as much as a few buffers,
// and so is what the call at hand leaves unused. All of it is offered when the
// handler listens again, as if it were new. It is sent to as before, and closes as
// before, but for the peer's end and a drain, which wait for input that is kept.
// A transport that breaks may close it, with what the kernel had. It does nothing to a
// connection whose input is not for the handler any more. It is for the owner, in a call
// of the handler.
func (c *Conn) Listen(on bool) {
	if !c.inputTaken() {
		c.listen(on)
	}
}

func (c *Conn) listen(on bool) {
	switch {
	case on && c.is(readPaused):
		c.state &^= readPaused
		c.restartPeerTimes()
	case !on && c.is(open):
		c.state |= readPaused
	}
}

// Yield has the rest of the input wait for the connection's next turn among those that
// send much: for a handler that has done much in one call, and then returns. Where there
// is no loop it does nothing.
func (c *Conn) Yield() {
	if o := c.host.Loop; o != nil && c.is(open) && o.OnLoop() {
		c.state |= yielded
		o.QueueRead(c)
	}
}

// TakeTurn ends what Yield has begun.
func (c *Conn) TakeTurn() { c.state &^= yielded }

// Hold says how many bytes of memory the handler holds because of what has arrived, which
// are counted as those of buffers are, and whether a part of a message is among it, to whose
// end the peer has MessageTimeout.
func (c *Conn) Hold(memory int, partial bool) {
	if !c.is(open) || memory == 0 && !partial && c.more == nil {
		return
	}
	x := c.extra()
	c.host.Counters.Add(Buffered, int64(memory-x.held))
	x.held = memory
	switch {
	case !partial:
		x.heldSince = 0
	case x.heldSince == 0:
		x.heldSince = c.host.Clock()
	}
	c.shrink()
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

// ReadPaused says that the handler does not listen.
func (c *Conn) ReadPaused() bool { return c.is(readPaused) }

// BothEnded reports whether the peer has ended and the end of the output has been sent.
func (c *Conn) BothEnded() bool { return c.is(peerEnded) && c.is(shut) }

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

// Ref names the connection, and names it still in Closed.
func (c *Conn) Ref() Ref {
	gen := c.mark.generation()
	if c.is(closing) {
		gen--
	}
	return Ref{c: c, gen: gen}
}

// Called says whether the handler is being called for this connection: only then is
// what it writes sent, when the call is over.
func (c *Conn) Called() bool { return c.is(inCall) }

func (c *Conn) callOpened() {
	c.call(c.handler().Opened)
	if c.more != nil {
		c.more.dialled = 0
		c.shrink()
	}
}

// callReceived offers input, to be shed if there is a reason. It repeats call: this
// is the way of each byte.
func (c *Conn) callReceived(in []byte, shed error) (used int) {
	returned := false
	defer c.contain(&returned)
	c.state |= inCall
	if shed != nil {
		used = c.host.Shed(c, in, shed)
	} else {
		used = c.handler().Received(c, in)
	}
	returned = true
	return used
}

func (c *Conn) callEnded(rest []byte) (used int) {
	c.call(func(c *Conn) { used = c.handler().Ended(c, rest) })
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
	if c.is(open) && !c.is(greeting|openPending|closing|failed) {
		c.callNudged()
		c.endEvent()
	}
}

// call calls the handler, and contains its panic.
func (c *Conn) call(f func(*Conn)) {
	returned := false
	defer c.contain(&returned)
	c.state |= inCall
	f(c)
	returned = true
}

// callClosed tells the handler why the connection has closed. A panic there comes
// too late to be the reason. One that has closed before a worker called Opened is
// opened first, so that each of the two comes once.
func (c *Conn) callClosed() {
	why := c.more.why
	defer func() { c.more.why = why }()
	if c.is(openPending) {
		c.state &^= openPending
		c.callOpened()
	}
	c.call(func(c *Conn) { c.handler().Closed(c, why) })
}

// contain ends a call of the handler, and a panic or runtime.Goexit in it: only this connection is
// closed. A Goexit goes on to end the frames below: see goexit.go.
func (c *Conn) contain(returned *bool) {
	c.state &^= inCall
	if *returned {
		return
	}
	v := recover()
	exits := v == nil
	if exits {
		v = ErrGoexit
	}
	if c.fail(c.host.panicked(c.Ref(), c.name(), v, debug.Stack())); exits {
		c.abandonEvent()
	}
}
