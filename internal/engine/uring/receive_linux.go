package uring

import (
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/loop"
	"github.com/myriad-go/myriad/internal/sock"
)

// received takes the completion of a receive. Bytes for a connection that is
// busy are kept, and the receive is ended so that not many come.
func (d *driver) received(c *engine.Conn, e cqe) {
	d.takeCompletion(c, e)
	d.Settle(c)
}

// takeCompletion gives the completion's buffer back whatever the handler does.
func (d *driver) takeCompletion(c *engine.Conn, e cqe) {
	if e.flags&cqeBuffer != 0 {
		defer d.buffers.recycle(e)
	}
	if e.flags&cqeMore == 0 {
		d.clear(c, receiving|canceling)
	}
	switch armed := c.DriverFlags(); {
	case armed&loop.Busy != 0:
		d.keepCompletion(c, e)
	case armed&dying == 0:
		var in []byte
		if e.res > 0 {
			in = d.buffers.bytes(e)
		}
		d.take(c, e.res, in)
		d.noteSize(c, e)
	}
}

// multishotMax is how much a receive brings of a connection that sends much. A receive that
// goes on by itself fills up to 32 buffers for it before we can stop it, whatever
// the connection may have; so such a connection is received from once at a time, and
// without a buffer of the ring where those may not be enough for all.
const multishotMax = 8 << 10

// noteSize notes whether the connection sends much: more than there was room for, too.
func (d *driver) noteSize(c *engine.Conn, e cqe) {
	switch armed := c.DriverFlags(); {
	case e.res >= multishotMax, e.res > 0 && d.buffers.full(e):
		c.SetDriverFlags(armed &^ small)
		d.stopReceiving(c)
	case e.res > 0:
		c.SetDriverFlags(armed | small)
	}
}

// take gives the core what a receive has brought.
func (d *driver) take(c *engine.Conn, res int32, in []byte) {
	switch {
	case res > 0:
		c.SetDriverFlags(c.DriverFlags() | active)
		c.OnRead(in)
		d.loop.NoteRead(c, int(res))
	case res == 0:
		c.OnEOF()
	case res == -int32(unix.ENOBUFS):
		if !d.buffers.giveMore() {
			d.loop.QueueYielded(c)
		}
	case res == -int32(unix.ECANCELED), res == -int32(unix.EAGAIN), res == -int32(unix.EINTR):
	default:
		c.OnTransportError(syscall.Errno(-res))
	}
}

// keepCompletion keeps a receive's completion until the connection is back.
func (d *driver) keepCompletion(c *engine.Conn, e cqe) {
	var in []byte
	if e.res > 0 {
		in = slices.Clone(d.buffers.bytes(e))
	}
	d.loop.Later(c, func() { d.take(c, e.res, in) })
	d.stopReceiving(c)
}

// stopReceiving ends the receive that is under way, if there is one.
func (d *driver) stopReceiving(c *engine.Conn) {
	if armed := c.DriverFlags(); armed&(receiving|canceling) == receiving {
		c.SetDriverFlags(armed | canceling)
		d.cancel(ofRecv | uint64(c.Slot()))
	}
}

// cancelAll has all that is under way to receive end.
func (d *driver) cancelAll(c *engine.Conn) {
	d.loop.TrackExpiry(c)
	d.stopReceiving(c)
	if c.DriverFlags()&polling != 0 {
		d.cancel(ofPoll | uint64(c.Slot()))
	}
}

// MayRead says whether nothing that is under way reads from the connection.
func (d *driver) MayRead(c *engine.Conn) bool { return c.DriverFlags()&(dying|receiving) == 0 }

// Read receives what is there, unless a receive is under way, which has been given
// earlier bytes or will be.
func (d *driver) Read(c *engine.Conn) bool {
	if !d.MayRead(c) {
		return false
	}
	if d.input == nil {
		d.input = make([]byte, engine.ReadSize)
	}
	n, errno := sock.Recv(c.FD(), d.input)
	switch {
	case errno == 0 && n > 0:
		d.take(c, int32(n), d.input[:n])
		if c.SetDriverFlags(c.DriverFlags() &^ small); n < multishotMax {
			c.SetDriverFlags(c.DriverFlags() | small)
		}
		if n < len(d.input) {
			c.OnReadEmpty()
		}
		return true
	case errno == 0:
		c.OnEOF()
	case errno == unix.EAGAIN:
		c.OnReadEmpty()
	default:
		c.OnTransportError(errno)
	}
	return false
}

// receive submits a receive: one that goes on until it is canceled or fails, if the
// last was small.
func (d *driver) receive(c *engine.Conn) {
	armed := c.DriverFlags()
	c.SetDriverFlags(armed | receiving)
	d.receives++
	d.loop.AddUrgent(1)
	s := d.ring.next()
	s.op, s.fd, s.flags = opRecv, c.FD(), sqeBufferSelect
	if armed&small != 0 {
		s.ioprio = recvMultishot
	}
	s.user = ofRecv | uint64(c.Slot())
}
