package engine

import (
	"net/netip"
	"runtime/debug"
	"time"
)

// This file contains the methods for handlers, which package tcp documents, and the engine's calls of handlers.

func (c *Conn) Write(p []byte) (int, error) {
	if err := c.checkWriteOrDropOrAbortAsSlow(len(p)); err != nil {
		return 0, err
	}
	switch {
	case c.layer() != nil:
		c.writeThroughLayerOrBehindFile(p)
	case c.canSendDirect(len(p), 1):
		c.sendWithOutputOrAppendOne(p)
	default:
		c.AppendToTransport(p)
	}
	return len(p), nil
}

// WriteBroadcasts writes messages to the connection. joined contains the same messages, concatenated. If joined fits
// into the output limit, WriteBroadcasts writes joined. Otherwise, it writes the messages one by one. Before the
// handler's Opened and on a closing connection, it has no effect. needsDriving reports whether the driver must perform
// the connection's next actions.
func (c *Conn) WriteBroadcasts(joined []byte, messages []*Shared) (needsDriving bool) {
	if !c.acceptsBroadcasts() {
		return false
	}
	if c.UnsentAndDroppedBytes()-c.postedBytesInOutput()+len(joined) > c.runtime.Limits.MaxUnsent {
		for _, m := range messages {
			_, _ = c.Write(m.Bytes) // an error was counted, or closes the connection
		}
	} else {
		if c.runtime.SendDirect != nil && !c.hasOutput() && c.layer() == nil && len(joined) > 0 {
			joined = joined[c.sendOutputThenPieces([][]byte{joined}):]
		}
		c.writeThroughLayerOrBehindFile(joined)
	}
	c.startPendingLayerAndUpdatePause()
	return true
}

func (c *Conn) acceptsBroadcasts() bool {
	return c.is(open) && !c.is(handshaking|openPending|closing|closingWrite|relayed)
}

func (c *Conn) WriteString(s string) (int, error) {
	if err := c.checkWriteOrDropOrAbortAsSlow(len(s)); err != nil {
		return 0, err
	}
	if c.layer() != nil {
		c.writeThroughLayerOrBehindFile([]byte(s))
	} else if len(s) > 0 {
		appendOutput(c.runtime, c.tailBufferOrNew(len(s)), s)
	}
	return len(s), nil
}

// checkWriteOrDropOrAbortAsSlow returns nil if size bytes may be written, and otherwise an error. If the bytes would
// exceed the output limit and Config.DropMessages is set, it also counts a dropped message. If DropMessages is not set,
// it aborts the connection instead.
func (c *Conn) checkWriteOrDropOrAbortAsSlow(size int) error {
	if c.is(closing|failed|closingWrite) || !c.is(open) {
		return ErrClosed
	}
	if c.hasPendingLayer() {
		return ErrBadUse
	}
	if size > c.runtime.Limits.MaxUnsent {
		return ErrTooLarge
	}
	if c.unsentInMemoryBytes()-c.postedBytesInOutput()+c.directSentInEvent()+size > c.runtime.Limits.MaxUnsent {
		if c.runtime.DropMessages {
			c.countDroppedMessage()
			return ErrFull
		}
		c.abortWith(ErrSlowConsumer)
		return ErrSlowConsumer
	}
	return nil
}

func (c *Conn) countDroppedMessage() {
	c.runtime.Counters.Add(Dropped, 1)
	c.ensureRare().droppedMessages++
}

func (c *Conn) postedBytesInOutput() (n int) {
	if c.out != nil {
		n = c.out.postedBytes
	}
	return n + c.fileQueueOrNil().sumDataBehindFiles(func(b *Buffer) int { return b.postedBytes })
}

func (c *Conn) unsentInMemoryBytes() (n int) {
	if c.out != nil {
		n = c.out.Len()
	}
	return n + c.fileQueueOrNil().sumDataBehindFiles((*Buffer).Len)
}

// UnsentAndDroppedBytes returns the number of bytes that have not been sent. They include the rest of queued files and,
// after an abort, the output that was dropped.
func (c *Conn) UnsentAndDroppedBytes() (n int) {
	if c.extra != nil {
		n = c.extra.droppedOutput
	}
	return n + c.unsentInMemoryBytes() + c.fileQueueOrNil().remainingFileBytes()
}

// BufferMemory returns the size in bytes of the buffers of the connection, its layer and its handler.
func (c *Conn) BufferMemory() int { return c.sumBuffersAndReportedMemory((*Buffer).totalCapacity) }

// BufferedBytes is like BufferMemory, but counts only the used bytes of the buffers.
func (c *Conn) BufferedBytes() int { return c.sumBuffersAndReportedMemory((*Buffer).Len) }

func (c *Conn) sumBuffersAndReportedMemory(bufferSize func(*Buffer) int) (n int) {
	if c.extra != nil {
		n = int(c.extra.layerBytes) + c.extra.handlerMemory
		if c.extra.pendingLayer != nil {
			n += c.extra.pendingLayer.deferredMemory
		}
	}
	for _, b := range []*Buffer{c.in, c.out} {
		if b != nil {
			n += bufferSize(b)
		}
	}
	return n + c.fileQueueOrNil().sumDataBehindFiles(bufferSize)
}

// IsAborted reports whether the connection will be closed without sending its output.
func (c *Conn) IsAborted() bool { return c.is(failed) }

// IsPaused reports whether the handler must stop using its input for now, for example because too much output is
// unsent.
func (c *Conn) IsPaused() bool {
	return c.is(closing|failed) || c.updateAndReportInputPaused()
}

// SetReading turns reading from the peer on or off. Reading is initially on. SetReading must be called within a handler
// call. It has no effect during a relay, the insertion of a layer or a Detach.
//
// While reading is off, the engine does not call Received and Ended, and the peer does not count as silent. The engine
// may store a few buffers of input, and also stores the bytes that the handler has left unused. The handler receives
// the stored input when reading is on again. Once the kernel's buffers are full, the peer must wait.
//
// Sending and closing continue as before. The peer's EOF and a shutdown are handled after the stored input. A transport
// error may close the connection. In this case, input that the kernel has received may be lost.
func (c *Conn) SetReading(enabled bool) {
	if !c.isInputTaken() {
		c.setReadingEnabled(enabled)
	}
}

func (c *Conn) setReadingEnabled(enabled bool) {
	switch {
	case enabled && c.is(readPaused):
		c.state &^= readPaused
		c.restartPeerTimeouts()
	case !enabled && c.is(open):
		c.state |= readPaused
	}
}

// YieldInput delays the next call of Received, so that the loop can serve other connections first. After calling
// YieldInput, the handler must return. In models without loops, YieldInput has no effect.
func (c *Conn) YieldInput() {
	if o := c.runtime.Loop; o != nil && c.is(open) && o.OnLoop() {
		c.state |= yielded
		o.QueueForLaterRead(c)
	}
}

func (c *Conn) ClearYield() { c.state &^= yielded }

// SetHandlerMemory records how many received bytes the handler stores in its own buffers. The counter Buffered includes
// these bytes. If hasPartialMessage is true, they end with an incomplete message, and Limits.MessageTimeout applies to
// this message.
func (c *Conn) SetHandlerMemory(bytes int, hasPartialMessage bool) {
	if !c.is(open) || bytes == 0 && !hasPartialMessage && !c.hasRare() {
		return
	}
	x := c.ensureRare()
	c.runtime.Counters.Add(Buffered, int64(bytes-x.handlerMemory))
	x.handlerMemory = bytes
	switch {
	case !hasPartialMessage:
		x.handlerPartialSince = 0
	case x.handlerPartialSince == 0:
		x.handlerPartialSince = c.runtime.Clock()
	}
	c.freeExtraIfZero()
}

// SetReadingDespiteUnsentOutput sets whether the connection is read even while too much output is unsent. It is for
// handlers that limit input and output themselves. If enabled is true, the connection also stays open during a shutdown
// until the peer has sent EOF, even after CloseWrite.
func (c *Conn) SetReadingDespiteUnsentOutput(enabled bool) {
	if enabled && c.is(open) {
		c.ensureRare().independentDirections = true
	} else if c.hasRare() {
		c.extra.independentDirections = false
		c.freeExtraIfZero()
	}
}

func (c *Conn) ReadsDespiteUnsentOutput() bool {
	return c.is(relayed) || c.extra != nil && c.extra.independentDirections
}

// IsReadPaused reports whether the handler, a relay or a rate limit has paused reading.
func (c *Conn) IsReadPaused() bool { return c.is(readPaused) || c.isReadRateExceeded() }

// BothEnded reports whether the peer has sent EOF and this side has shut down the sending direction.
func (c *Conn) BothEnded() bool { return c.is(peerEOF) && c.is(shut) }

// CountMessagesAndLimitRate records that the handler has used n messages. It adds n to the counter Messages. If the
// messages exceed the connection's message rate limit, it pauses reading.
func (c *Conn) CountMessagesAndLimitRate(n int) {
	if n > 0 {
		c.runtime.Counters.Add(Messages, int64(n))
		if c.mayHaveReadRate() {
			c.useAllowanceAndPauseIfExceeded(0, n)
		}
	}
}

func (c *Conn) Limits() *Limits { return &c.runtime.Limits }

func (c *Conn) MaxMessage() int { return c.runtime.Limits.MaxMessage }

// RefusedBytes returns how many bytes of the input the handler has seen but not used. They are the first bytes of the
// handler's next input.
func (c *Conn) RefusedBytes() int {
	return int(c.refusedBytes)
}

func (c *Conn) Clock() time.Duration { return c.runtime.Clock() }

// LoopReads returns the number of reads from all connections of this connection's owner. It is the owner's counter
// Reads.
func (c *Conn) LoopReads() int64 { return c.runtime.Counters.Get(Reads) }

func (c *Conn) Server() any { return c.runtime.Server }

func (c *Conn) LoopIndex() int { return c.runtime.Index }

func (c *Conn) IsDialled() bool { return c.is(dialled) }

// Peer returns the peer's address. For a unix socket, Peer returns the zero value.
func (c *Conn) Peer() netip.AddrPort {
	if c.peerPort == 0 && c.peerAddr == [16]byte{} {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(netip.AddrFrom16(c.peerAddr).Unmap(), c.peerPort)
}

// Ref returns a Ref to the connection. Ref may also be called within the handler's Closed.
func (c *Conn) Ref() Ref {
	gen := c.refState.generation()
	if c.is(closing) {
		gen--
	}
	return Ref{c: c, generation: gen}
}

// InHandlerCall reports whether a handler call is in progress. Output that is written outside a handler call may stay
// unsent.
func (c *Conn) InHandlerCall() bool { return c.is(inCall) }

func (c *Conn) callOpened() {
	c.callHandler(c.ownOrEngineHandler().Opened)
	if c.hasRare() {
		c.extra.dialStarted = 0
		c.freeExtraIfZero()
	}
}

func (c *Conn) callReceivedOrShed(in []byte, shedReason error) (used int) {
	returned := false
	defer c.recoverHandlerPanicAndAbort(&returned)
	c.state |= inCall
	if shedReason != nil {
		used = c.callbacks().Shed(c, in, shedReason)
	} else {
		used = c.ownOrEngineHandler().Received(c, in)
	}
	returned = true
	return used
}

func (c *Conn) callEnded(unread []byte) (used int) {
	c.callHandler(func(c *Conn) { used = c.ownOrEngineHandler().Ended(c, unread) })
	return used
}

func (c *Conn) callNudged() {
	if n, ok := c.ownOrEngineHandler().(Nudger); ok {
		c.callHandler(n.Nudged)
	}
}

// CallNudgedIfOpen calls the handler's Nudged. Before Opened and on a closing connection, it has no effect.
func (c *Conn) CallNudgedIfOpen() {
	if c.is(open) && !c.is(handshaking|openPending|closing|failed) {
		c.callNudged()
		c.startPendingLayerAndUpdatePause()
	}
}

func (c *Conn) callHandler(f func(*Conn)) {
	returned := false
	defer c.recoverHandlerPanicAndAbort(&returned)
	c.state |= inCall
	f(c)
	returned = true
}

// callClosedAfterDueOpened calls the handler's Closed. If Opened is due but has not been called yet, it calls Opened
// first.
func (c *Conn) callClosedAfterDueOpened() {
	reason := c.extra.closeReason
	defer func() {
		if c.hasRare() {
			c.extra.closeReason = reason
		}
	}()
	if c.is(openPending) {
		c.state &^= openPending
		c.callOpened()
	}
	c.callHandler(func(c *Conn) { c.ownOrEngineHandler().Closed(c, reason) })
}

// recoverHandlerPanicAndAbort aborts the connection after a panic or runtime.Goexit in a handler call. It must be
// called by defer. *returned must be true if the handler has returned.
func (c *Conn) recoverHandlerPanicAndAbort(returned *bool) {
	c.state &^= inCall
	if *returned {
		return
	}
	v := recover()
	exits := v == nil
	if exits {
		v = ErrGoexit
	}
	if c.abortWith(c.runtime.logAndCountPanic(c.Ref(), c.peerName(), v, debug.Stack())); exits {
		c.updatePauseAndScheduleActionsAfterGoexit()
	}
}
