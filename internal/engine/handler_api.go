package engine

import (
	"net/netip"
	"runtime/debug"
)

// This file has what a handler may do with its connection, and the calls into
// the handler. Package tcp documents the former for its users.

// Write appends p to the output.
func (c *Conn) Write(p []byte) (int, error) {
	if err := c.checkWrite(len(p)); err != nil {
		return 0, err
	}
	switch {
	case c.layer() != nil:
		c.writeThroughLayer(p)
	case c.canSendDirect(len(p), 1):
		c.sendDirectOrAppendOne(p)
	default:
		c.AppendToTransport(p)
	}
	return len(p), nil
}

// WriteBroadcasts writes messages to all, and all of them in one piece if that fits, unless the
// handler has not heard of the connection. It says whether there may be something to
// do. Where nothing is unsent they are sent at once.
func (c *Conn) WriteBroadcasts(joined []byte, messages []*Shared) bool {
	if !c.acceptsBroadcasts() {
		return false
	}
	if c.UnsentBytes()-c.postedOutput()+len(joined) > c.runtime.Limits.MaxUnsent {
		for _, m := range messages {
			_, _ = c.Write(m.Bytes) // an error has been counted, or the connection closes
		}
	} else {
		if c.runtime.SendDirect != nil && !c.hasOutput() && c.layer() == nil && len(joined) > 0 {
			joined = joined[c.sendDirect([][]byte{joined}):]
		}
		c.writeThroughLayer(joined)
	}
	c.endEvent()
	return true
}

// acceptsBroadcasts says whether broadcasts are for the connection.
func (c *Conn) acceptsBroadcasts() bool {
	return c.is(open) && !c.is(handshaking|openPending|closing|closingWrite|relayed)
}

// WriteString is Write for a string.
func (c *Conn) WriteString(s string) (int, error) {
	if err := c.checkWrite(len(s)); err != nil {
		return 0, err
	}
	if c.layer() != nil {
		c.writeThroughLayer([]byte(s))
	} else if len(s) > 0 {
		appendOutput(c.runtime, c.tailBuffer(len(s)), s)
	}
	return len(s), nil
}

// checkWrite says whether n bytes may be appended. Posted bytes have a bound of
// their own.
func (c *Conn) checkWrite(n int) error {
	if c.is(closing|failed|closingWrite) || !c.is(open) {
		return ErrClosed
	}
	if c.hasPendingLayer() {
		return ErrBadUse
	}
	if n > c.runtime.Limits.MaxUnsent {
		return ErrTooLarge
	}
	if c.unsentInMemory()-c.postedOutput()+c.directSent()+n > c.runtime.Limits.MaxUnsent {
		if c.runtime.DropMessages {
			c.countDropped()
			return ErrFull
		}
		c.abortWith(ErrSlowConsumer)
		return ErrSlowConsumer
	}
	return nil
}

// countDropped counts a message that the output had no room for.
func (c *Conn) countDropped() {
	c.runtime.Counters.Add(Dropped, 1)
	c.ensureExtra().droppedMessages++
}

// postedOutput is how much of the output came from outside.
func (c *Conn) postedOutput() (n int) {
	if c.out != nil {
		n = c.out.postedBytes
	}
	return n + c.queuedFiles().sumFollowing(func(b *Buffer) int { return b.postedBytes })
}

// unsentInMemory is the number of bytes of output in memory.
func (c *Conn) unsentInMemory() (n int) {
	if c.out != nil {
		n = c.out.Len()
	}
	return n + c.queuedFiles().sumFollowing((*Buffer).Len)
}

// UnsentBytes is the number of bytes of output that are not sent yet, those of files
// too, or that were dropped when the connection failed.
func (c *Conn) UnsentBytes() (n int) {
	if c.extra != nil {
		n = c.extra.droppedOutput
	}
	return n + c.unsentInMemory() + c.queuedFiles().remainingBytes()
}

// BufferMemory is how many bytes of memory the connection's buffers take, with what its
// layer keeps.
func (c *Conn) BufferMemory() int { return c.sumBuffers((*Buffer).capacity) }

// BufferedBytes is how many bytes of what it Holds are in use.
func (c *Conn) BufferedBytes() int { return c.sumBuffers((*Buffer).Len) }

func (c *Conn) sumBuffers(size func(*Buffer) int) (n int) {
	if c.extra != nil {
		n = c.extra.layerBytes + c.extra.handlerMemory
		if c.extra.pendingLayer != nil {
			n += c.extra.pendingLayer.deferredMemory
		}
	}
	for _, b := range []*Buffer{c.in, c.out} {
		if b != nil {
			n += size(b)
		}
	}
	return n + c.queuedFiles().sumFollowing(size)
}

// IsAborted says whether the connection is about to be closed without sending what it
// owes.
func (c *Conn) IsAborted() bool { return c.is(failed) }

// IsPaused says whether a handler that has input left to use is to stop and
// leave it: more output is unsent than reading goes on for, or it does not listen.
func (c *Conn) IsPaused() bool {
	return c.is(closing|failed) || c.isInputPaused()
}

// SetReading says whether the handler listens to the peer; it does at first. While it
// does not, nothing is read, so that the kernel's buffers fill up and the peer has
// to wait: that is not counted as its silence. Received and Ended are not called;
// what has been read already, or is being read, is kept, as much as a few buffers,
// and so is what the call at hand leaves unused. All of it is offered when the
// handler listens again, as if it were new. It is sent to as before, and closes as
// before, but for the peer's end and a drain, which wait for input that is kept.
// A transport that breaks may close it, with what the kernel had. It does nothing to a
// connection whose input is not for the handler any more. It is for the owner, in a call
// of the handler.
func (c *Conn) SetReading(on bool) {
	if !c.isInputTaken() {
		c.setReading(on)
	}
}

func (c *Conn) setReading(on bool) {
	switch {
	case on && c.is(readPaused):
		c.state &^= readPaused
		c.restartPeerTimeouts()
	case !on && c.is(open):
		c.state |= readPaused
	}
}

// YieldInput has the rest of the input wait for the connection's next turn among those that
// send much: for a handler that has done much in one call, and then returns. Where there
// is no loop it does nothing.
func (c *Conn) YieldInput() {
	if o := c.runtime.Loop; o != nil && c.is(open) && o.OnLoop() {
		c.state |= yielded
		o.QueueYielded(c)
	}
}

// ClearYield ends what Yield has begun.
func (c *Conn) ClearYield() { c.state &^= yielded }

// SetHandlerMemory says how many bytes of memory the handler holds because of what has arrived, which
// are counted as those of buffers are, and whether a part of a message is among it, to whose
// end the peer has MessageTimeout.
func (c *Conn) SetHandlerMemory(bytes int, partialMessage bool) {
	if !c.is(open) || bytes == 0 && !partialMessage && c.extra == nil {
		return
	}
	x := c.ensureExtra()
	c.runtime.Counters.Add(Buffered, int64(bytes-x.handlerMemory))
	x.handlerMemory = bytes
	switch {
	case !partialMessage:
		x.handlerPartialSince = 0
	case x.handlerPartialSince == 0:
		x.handlerPartialSince = c.runtime.Clock()
	}
	c.freeExtraIfZero()
}

// SetIndependentDirections says whether the connection is read from whatever it owes, and a drain waits for
// the peer's end also when our direction is shut: for a handler that bounds both
// directions itself. It does not at first.
func (c *Conn) SetIndependentDirections(on bool) {
	if on && c.is(open) {
		c.ensureExtra().independentDirections = true
	} else if c.extra != nil {
		c.extra.independentDirections = false
		c.freeExtraIfZero()
	}
}

// HasIndependentDirections says whether neither direction waits for the other.
func (c *Conn) HasIndependentDirections() bool {
	return c.is(relayed) || c.extra != nil && c.extra.independentDirections
}

// IsReadPaused says that the handler does not listen.
func (c *Conn) IsReadPaused() bool { return c.is(readPaused) }

// BothEnded reports whether the peer has ended and the end of the output has been sent.
func (c *Conn) BothEnded() bool { return c.is(peerEOF) && c.is(shut) }

// CountMessages counts messages that were cut out of the input.
func (c *Conn) CountMessages(n int) {
	if n > 0 {
		c.runtime.Counters.Add(Messages, int64(n))
	}
}

// Limits are those of the connection's host; they do not change.
func (c *Conn) Limits() *Limits { return &c.runtime.Limits }

// MaxMessage is the limit of that name.
func (c *Conn) MaxMessage() int { return c.runtime.Limits.MaxMessage }

// RefusedBytes is how many bytes of the input the handler was offered before and did
// not use. It goes back to 0 when input is used.
func (c *Conn) RefusedBytes() int {
	return int(c.refusedBytes)
}

// Server is Config.Owner.
func (c *Conn) Server() any { return c.runtime.Server }

// LoopIndex numbers the connection's loop.
func (c *Conn) LoopIndex() int { return c.runtime.Index }

// IsDialled says whether the connection was dialled.
func (c *Conn) IsDialled() bool { return c.is(dialled) }

// Peer is the other side's address; the zero value if it has no port.
func (c *Conn) Peer() netip.AddrPort {
	if c.peerPort == 0 && c.peerAddr == [16]byte{} {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(netip.AddrFrom16(c.peerAddr).Unmap(), c.peerPort)
}

// Ref names the connection, and names it still in Closed.
func (c *Conn) Ref() Ref {
	gen := c.refState.generation()
	if c.is(closing) {
		gen--
	}
	return Ref{c: c, generation: gen}
}

// InHandlerCall says whether the handler is being called for this connection: only then is
// what it writes sent, when the call is over.
func (c *Conn) InHandlerCall() bool { return c.is(inCall) }

func (c *Conn) callOpened() {
	c.callHandler(c.handler().Opened)
	if c.extra != nil {
		c.extra.dialStarted = 0
		c.freeExtraIfZero()
	}
}

// callReceived offers input, to be shed if there is a reason. It repeats call: this
// is the way of each byte.
func (c *Conn) callReceived(in []byte, shedReason error) (used int) {
	returned := false
	defer c.endHandlerCall(&returned)
	c.state |= inCall
	if shedReason != nil {
		used = c.runtime.Shed(c, in, shedReason)
	} else {
		used = c.handler().Received(c, in)
	}
	returned = true
	return used
}

func (c *Conn) callEnded(unread []byte) (used int) {
	c.callHandler(func(c *Conn) { used = c.handler().Ended(c, unread) })
	return used
}

func (c *Conn) callNudged() {
	if n, ok := c.handler().(Nudger); ok {
		c.callHandler(n.Nudged)
	}
}

// OnNudge calls the handler's Nudged, if it has heard of the connection and nothing
// closes that.
func (c *Conn) OnNudge() {
	if c.is(open) && !c.is(handshaking|openPending|closing|failed) {
		c.callNudged()
		c.endEvent()
	}
}

// callHandler calls the handler, and contains its panic.
func (c *Conn) callHandler(f func(*Conn)) {
	returned := false
	defer c.endHandlerCall(&returned)
	c.state |= inCall
	f(c)
	returned = true
}

// callClosed tells the handler why the connection has closed. A panic there comes
// too late to be the reason. One that has closed before a worker called Opened is
// opened first, so that each of the two comes once.
func (c *Conn) callClosed() {
	reason := c.extra.closeReason
	defer func() { c.extra.closeReason = reason }()
	if c.is(openPending) {
		c.state &^= openPending
		c.callOpened()
	}
	c.callHandler(func(c *Conn) { c.handler().Closed(c, reason) })
}

// endHandlerCall ends a call of the handler, and a panic or runtime.Goexit in it: only this connection is
// closed. A Goexit goes on to end the frames below: see goexit.go.
func (c *Conn) endHandlerCall(returned *bool) {
	c.state &^= inCall
	if *returned {
		return
	}
	v := recover()
	exits := v == nil
	if exits {
		v = ErrGoexit
	}
	if c.abortWith(c.runtime.reportPanic(c.Ref(), c.peerName(), v, debug.Stack())); exits {
		c.endEventAfterGoexit()
	}
}
