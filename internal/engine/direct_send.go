package engine

import "sync"

// This file is gathered output: much that a handler writes is sent at once, in one
// call with what little waits before it, and only what the kernel does not take is
// copied.

const (
	// minDirectSend is where sending at once begins to cost less than copying.
	minDirectSend = 16 << 10
	// maxDirectPieces is the most pieces of one call; more are copied.
	maxDirectPieces = 64
)

var vectorPool = sync.Pool{New: func() any { return new([maxDirectPieces][]byte) }}

// Writev appends all pieces to the output, or none.
func (c *Conn) Writev(pieces ...[]byte) (int, error) {
	n := 0
	for _, p := range pieces {
		if n += len(p); n > c.runtime.Limits.MaxUnsent { // and does not overflow
			break
		}
	}
	if err := c.checkWrite(n); err != nil {
		return 0, err
	}
	if c.layer() == nil {
		c.sendDirectOrAppend(n, pieces...)
		return n, nil
	}
	for _, p := range pieces {
		c.writeThroughLayer(p)
	}
	return n, nil
}

// sendDirectOrAppend appends pieces of so many bytes to the output, where there is no layer.
func (c *Conn) sendDirectOrAppend(total int, pieces ...[]byte) {
	sent, full := 0, c.canSendDirect(total, len(pieces))
	if full {
		sent = c.sendDirect(pieces)
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

// sendDirectOrAppendOne is put of one piece that may be gathered. It is not part of Write, whose frame is to be
// small: the stack of a goroutine that has only 2 KiB does not grow then for what most handlers write.
//
//go:noinline
func (c *Conn) sendDirectOrAppendOne(p []byte) {
	c.AppendToTransport(p[c.sendDirect([][]byte{p}):])
	if c.out != nil {
		c.out.kernelFull = true
	}
}

// canSendDirect says whether so much may be sent at once: if all that is before it goes
// along, and the kernel has not refused any of that.
func (c *Conn) canSendDirect(size, numPieces int) bool {
	if c.runtime.SendDirect == nil || size < c.runtime.MinDirectSend || size == 0 || numPieces >= maxDirectPieces || c.queuedFiles() != nil || c.is(relayed) {
		return false
	}
	return c.out == nil || !c.is(blocked) && !c.out.kernelFull && !c.out.inKernel && len(c.out.rest) == 0
}

// sendDirect sends what waits, and pieces behind it, as far as the kernel takes them. It
// says how much of the pieces is gone.
func (c *Conn) sendDirect(pieces [][]byte) int {
	n := 0
	if c.out == nil && len(pieces) == 1 { // as mostly
		n = c.runtime.SendDirect(c, pieces[0], nil)
	} else {
		n = c.sendDirectAll(pieces)
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
		if left, posted = c.consumeOutput(before); left == 0 {
			c.releaseOutput(c.out)
			c.out = nil
		} else {
			c.out.recordProgress(before, c.runtime.Clock())
		}
	}
	c.setDirectSent(c.directSent() + max(n-posted, 1)) // above 0, so that the event's end looks
	return n - before
}

// sendDirectAll sends what waits, and pieces behind it, from a list that Direct may keep.
func (c *Conn) sendDirectAll(pieces [][]byte) int {
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

// consumeOutput takes n bytes from the front of the output, and says how many are left, and
// how many of them no longer count as posted.
func (c *Conn) consumeOutput(n int) (left, released int) {
	c.out.discardFront(n)
	left = c.out.Len()
	if released = c.out.postedBytes - left; released <= 0 {
		return left, 0
	}
	c.releasePosted(released)
	c.out.postedBytes = left
	return left, released
}

// releaseOutput lets go of a buffer of output.
func (c *Conn) releaseOutput(b *Buffer) {
	if b.postedBytes > 0 {
		c.releasePosted(b.postedBytes)
	}
	c.runtime.putBuffer(b)
}

// finishOutput ends output of which all is sent.
func (c *Conn) finishOutput() {
	c.releaseOutput(c.out)
	c.out = nil
	c.promoteQueuedOutput()
}

// directSent is how many bytes that the handler has written were sent directly in this
// event. They count as if they were waiting still, so that a handler is bounded
// wherever it runs. An owner has one event at a time, so its host keeps the number; a
// host of many owners leaves that to their connections.
func (c *Conn) directSent() int {
	switch {
	case c.runtime.ClockSlack == 0:
		return c.runtime.directSent
	case c.extra == nil:
		return 0
	}
	return c.extra.directSent
}

func (c *Conn) setDirectSent(n int) {
	if c.runtime.ClockSlack == 0 {
		c.runtime.directSent = n
	} else {
		c.ensureExtra().directSent = n
	}
}

// endEvent begins an upgrade that was asked for, and forgets what was sent directly in this event. If that has made it too
// much, and the handler was told so, it is told that it is not any more.
func (c *Conn) endEvent() {
	if c.hasPendingLayer() {
		c.startPendingLayer()
	}
	if c.directSent() == 0 { // as always, where workers might look
		return
	}
	c.setDirectSent(0)
	c.checkHighWater() // notes it before a driver waits for room
	c.checkLowWater()
}
