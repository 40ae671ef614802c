package engine

import "sync"

// This file sends large writes directly: one system call sends the preceding output and the write. Only bytes that the
// kernel does not accept are copied.

const (
	// minDirectSend is the minimum size in bytes for which a system call costs less than copying.
	minDirectSend = 16 << 10
	// maxDirectPieces limits the slices in one system call, which include the output. A write of maxDirectPieces or
	// more slices is copied to the output instead.
	maxDirectPieces = 64
)

var vectorPool = sync.Pool{New: func() any { return new([maxDirectPieces][]byte) }}

// Writev writes the pieces in order. If they do not all fit into the output limit, it writes none of them.
func (c *Conn) Writev(pieces ...[]byte) (int, error) {
	n := 0
	for _, p := range pieces {
		if n += len(p); n > c.runtime.Limits.MaxUnsent { // checked here, before n can overflow
			break
		}
	}
	if err := c.checkWriteOrDropOrAbortAsSlow(n); err != nil {
		return 0, err
	}
	if c.layer() == nil {
		c.sendWithOutputOrAppend(n, pieces...)
		return n, nil
	}
	for _, p := range pieces {
		c.writeThroughLayerOrBehindFile(p)
	}
	return n, nil
}

// sendWithOutputOrAppend sends as much of pieces as possible immediately, and appends the rest to the output. totalSize
// is the number of bytes in pieces. The connection must have no layer.
func (c *Conn) sendWithOutputOrAppend(totalSize int, pieces ...[]byte) {
	sent, full := 0, c.canSendDirect(totalSize, len(pieces))
	if full {
		sent = c.sendOutputThenPieces(pieces)
	}
	for _, p := range pieces {
		n := min(sent, len(p))
		c.AppendToTransport(p[n:])
		sent -= n
	}
	if full && c.out != nil {
		c.out.kernelFull = true
	}
}

//go:noinline
func (c *Conn) sendWithOutputOrAppendOne(p []byte) {
	// Not inlined, because Write's stack frame must fit into a goroutine's initial stack of 2 KiB.
	c.AppendToTransport(p[c.sendOutputThenPieces([][]byte{p}):])
	if c.out != nil {
		c.out.kernelFull = true
	}
}

func (c *Conn) canSendDirect(size, numPieces int) bool {
	if c.runtime.SendDirect == nil || size < c.runtime.MinDirectSend || size == 0 || numPieces >= maxDirectPieces || c.fileQueueOrNil() != nil || c.is(relayed) {
		return false
	}
	return c.out == nil || !c.is(blocked) && !c.out.kernelFull && !c.out.inKernel && len(c.out.rest) == 0
}

func (c *Conn) sendOutputThenPieces(pieces [][]byte) (pieceBytesSent int) {
	n := 0
	if c.out == nil && len(pieces) == 1 { // the usual case
		n = c.runtime.SendDirect(c, pieces[0], nil)
	} else {
		n = c.writevOutputThenPieces(pieces)
	}
	if n <= 0 {
		return 0
	}
	c.runtime.Counters.Add(Writes, 1)
	c.runtime.Counters.Add(BytesOut, int64(n))
	before, posted := 0, 0
	if c.out != nil {
		before = min(n, c.out.Len())
		var left int
		if left, posted = c.discardSentAndReleasePosted(before); left == 0 {
			c.freeOutputAndReleasePostedBytes(c.out)
			c.out = nil
		} else {
			c.out.countSentAndRestartTimerAtGoal(before, c.runtime.Clock())
		}
	}
	c.setDirectSentInEvent(c.directSentInEvent() + max(n-posted, 1)) // above 0, so that startPendingLayerAndUpdatePause checks the limits
	return n - before
}

// writevOutputThenPieces sends the output and then the pieces with one vectored write. sentWithOutput counts the sent
// bytes of both.
func (c *Conn) writevOutputThenPieces(pieces [][]byte) (sentWithOutput int) {
	list := vectorPool.Get().(*[maxDirectPieces][]byte)
	all := list[:0]
	if c.out != nil {
		all = append(all, c.out.Bytes())
	}
	for _, p := range pieces {
		if len(p) > 0 {
			all = append(all, p)
		}
	}
	n := c.runtime.SendDirect(c, all[0], all[1:])
	clear(all)
	vectorPool.Put(list)
	return n
}

func (c *Conn) discardSentAndReleasePosted(sentBytes int) (unsentBytes, releasedPosted int) {
	c.out.discardFrontBytes(sentBytes)
	unsentBytes = c.out.Len()
	if releasedPosted = c.out.postedBytes - unsentBytes; releasedPosted <= 0 {
		return unsentBytes, 0
	}
	c.releasePostedAndWakeIfLow(releasedPosted)
	c.out.postedBytes = unsentBytes
	return unsentBytes, releasedPosted
}

func (c *Conn) freeOutputAndReleasePostedBytes(b *Buffer) {
	if b.postedBytes > 0 {
		c.releasePostedAndWakeIfLow(b.postedBytes)
	}
	c.runtime.freeCountedBuffer(b)
}

func (c *Conn) freeSentOutputAndAdvanceFiles() {
	c.freeOutputAndReleasePostedBytes(c.out)
	c.out = nil
	c.removeFinishedFilesAndAdvance()
}

// directSentInEvent returns how many bytes were sent directly, without being copied to the output, during the current
// event.
func (c *Conn) directSentInEvent() int {
	switch {
	case c.runtime.ClockSlack == 0:
		return c.runtime.directSent
	case c.extra == nil:
		return 0
	}
	return c.extra.directSent
}

func (c *Conn) setDirectSentInEvent(sentBytes int) {
	if c.runtime.ClockSlack == 0 {
		c.runtime.directSent = sentBytes
	} else {
		c.ensureRare().directSent = sentBytes
	}
}

// startPendingLayerAndUpdatePause completes the handling of an event. It starts a layer that was requested during the
// event. If bytes were sent directly, it pauses or resumes reading according to the amount of unsent output.
func (c *Conn) startPendingLayerAndUpdatePause() {
	if c.hasPendingLayer() {
		c.startPendingLayerOrClose()
	}
	if c.directSentInEvent() == 0 { // always true while a worker might read the field
		return
	}
	c.setDirectSentInEvent(0)
	c.pauseReadingAtHighWater() // must record the pause before the driver waits for writability
	c.resumeAndScheduleDrainedIfLow()
}

// CanReceiveDirectly reports whether the connection supports Ref.ReceiveAssumingReadingOff. It must be called during a
// handler call, and the handler must use all of its input in this call.
func (c *Conn) CanReceiveDirectly() bool {
	return c.runtime.ReceiveDirect != nil && !c.runtime.OnWorkers && c.ensureReadRateIfLimited() == nil && c.in == nil && c.layer() == nil && !c.is(peerEOF|relayed)
}

// ReceiveAssumingReadingOff reads available bytes into p without blocking. It returns 0 if no bytes have arrived or if
// the connection has ended. The engine handles the end of the connection when reading is turned on again.
//
// p must not be empty. Reading must have been turned off; see Conn.SetReading. Any goroutine may call
// ReceiveAssumingReadingOff, but only one at a time.
func (r Ref) ReceiveAssumingReadingOff(p []byte) (n int) {
	r.callLockedIfOpen(func(c *Conn) { n = c.runtime.ReceiveDirect(c, p) })
	if n > 0 {
		r.c.runtime.Shared.Add(Reads, 1)
		r.c.runtime.Shared.Add(BytesIn, int64(n))
	}
	return n
}

// CanSendFromOthers reports whether goroutines other than the connection's owner may now call
// Ref.SendAssumingEmptyOutput. These goroutines must no longer call SendAssumingEmptyOutput when the owner writes to c.
func (c *Conn) CanSendFromOthers() bool {
	return c.runtime.SendFromOthers != nil && !c.runtime.OnWorkers && !c.hasOutput() && c.layer() == nil && !c.is(relayed|closingWrite|closing)
}

// SendAssumingEmptyOutput sends the given slices in order, without blocking. It returns the number of bytes sent. If
// the connection has begun to close, it returns 0.
//
// The first slice must not be empty, and at most 63 others may follow. Any goroutine may call SendAssumingEmptyOutput,
// but only one at a time, and only while nothing else writes to the connection; see Conn.CanSendFromOthers.
func (r Ref) SendAssumingEmptyOutput(first []byte, rest ...[]byte) (n int) {
	r.callLockedIfOpen(func(c *Conn) { n = c.runtime.SendFromOthers(c, first, rest) })
	if n > 0 {
		r.c.runtime.Shared.Add(Writes, 1)
		r.c.runtime.Shared.Add(BytesOut, int64(n))
	}
	return n
}
