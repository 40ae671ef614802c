package engine

import "sync"

// This file is gathered output: much that a handler writes is sent at once, in one
// call with what little waits before it, and only what the kernel does not take is
// copied.

const (
	// directSize is where sending at once begins to cost less than copying.
	directSize = 16 << 10
	// maxPieces is the most pieces of one call; more are copied.
	maxPieces = 64
)

var gatherings = sync.Pool{New: func() any { return new([maxPieces][]byte) }}

// Writev appends all pieces to the output, or none.
func (c *Conn) Writev(pieces ...[]byte) (int, error) {
	n := 0
	for _, p := range pieces {
		if n += len(p); n > c.host.Limits.MaxUnsent { // and does not overflow
			break
		}
	}
	if err := c.writable(n); err != nil {
		return 0, err
	}
	if c.layer() == nil {
		c.put(n, pieces...)
		return n, nil
	}
	for _, p := range pieces {
		c.passDown(p)
	}
	return n, nil
}

// put appends pieces of so many bytes to the output, where there is no layer.
func (c *Conn) put(size int, pieces ...[]byte) {
	sent, full := 0, c.mayGather(size, len(pieces))
	if full {
		sent = c.gather(pieces)
	}
	for _, p := range pieces {
		n := min(sent, len(p))
		c.Append(p[n:])
		sent -= n
	}
	if full && c.out != nil {
		c.out.full = true
	}
}

// putLarge is put of one piece that may be gathered. It is not part of Write, whose frame is to be
// small: the stack of a goroutine that has only 2 KiB does not grow then for what most handlers write.
//
//go:noinline
func (c *Conn) putLarge(p []byte) {
	c.Append(p[c.gather([][]byte{p}):])
	if c.out != nil {
		c.out.full = true
	}
}

// mayGather says whether so much may be sent at once: if all that is before it goes
// along, and the kernel has not refused any of that.
func (c *Conn) mayGather(size, pieces int) bool {
	if c.host.Direct == nil || size < c.host.DirectSize || size == 0 || pieces >= maxPieces || c.files() != nil || c.is(relayed) {
		return false
	}
	return c.out == nil || !c.is(blocked) && !c.out.full && !c.out.lent && len(c.out.rest) == 0
}

// gather sends what waits, and pieces behind it, as far as the kernel takes them. It
// says how much of the pieces is gone.
func (c *Conn) gather(pieces [][]byte) int {
	n := 0
	if c.out == nil && len(pieces) == 1 { // as mostly
		n = c.host.Direct(c, pieces[0], nil)
	} else {
		n = c.directAll(pieces)
	}
	if n <= 0 {
		return 0
	}
	c.host.Counters.Add(Writes, 1)
	c.host.Counters.Add(BytesOut, int64(n))
	before, posted := 0, 0
	if c.out != nil {
		before = min(n, c.out.Len())
		var left int
		if left, posted = c.took(before); left == 0 {
			c.release(c.out)
			c.out = nil
		} else {
			c.out.progress(before, c.host.Clock())
		}
	}
	c.setDirect(c.direct() + max(n-posted, 1)) // above 0, so that the event's end looks
	return n - before
}

// directAll sends what waits, and pieces behind it, from a list that Direct may keep.
func (c *Conn) directAll(pieces [][]byte) int {
	list := gatherings.Get().(*[maxPieces][]byte)
	all := list[:0]
	if c.out != nil {
		all = append(all, c.out.Bytes())
	}
	for _, p := range pieces {
		if len(p) > 0 {
			all = append(all, p)
		}
	}
	n := c.host.Direct(c, all[0], all[1:])
	clear(all)
	gatherings.Put(list)
	return n
}

// took takes n bytes from the front of the output, and says how many are left, and
// how many of them no longer count as posted.
func (c *Conn) took(n int) (left, released int) {
	c.out.skip(n)
	left = c.out.Len()
	if released = c.out.owed - left; released <= 0 {
		return left, 0
	}
	c.unpost(released)
	c.out.owed = left
	return left, released
}

// release lets go of a buffer of output.
func (c *Conn) release(b *Buffer) {
	if b.owed > 0 {
		c.unpost(b.owed)
	}
	c.host.put(b)
}

// emptied ends output of which all is sent.
func (c *Conn) emptied() {
	c.release(c.out)
	c.out = nil
	c.advance()
}

// direct is how many bytes that the handler has written were sent directly in this
// event. They count as if they were waiting still, so that a handler is bounded
// wherever it runs. An owner has one event at a time, so its host keeps the number; a
// host of many owners leaves that to their connections.
func (c *Conn) direct() int {
	switch {
	case c.host.Grain == 0:
		return c.host.direct
	case c.more == nil:
		return 0
	}
	return c.more.direct
}

func (c *Conn) setDirect(n int) {
	if c.host.Grain == 0 {
		c.host.direct = n
	} else {
		c.extra().direct = n
	}
}

// endEvent begins an upgrade that was asked for, and forgets what was sent directly in this event. If that has made it too
// much, and the handler was told so, it is told that it is not any more.
func (c *Conn) endEvent() {
	if c.upgrades() {
		c.beginUpgrade()
	}
	if c.direct() == 0 { // as always, where workers might look
		return
	}
	c.setDirect(0)
	c.pausesReading() // notes it before a driver waits for room
	c.checkLowWater()
}
