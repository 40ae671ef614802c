package uring

import (
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/loop"
	"github.com/myriad-go/myriad/internal/sock"
)

// handleRecvCompletion takes the completion of a receive. Bytes for a connection that is
// busy are kept, and the receive is ended so that not many come.
func (d *driver) handleRecvCompletion(c *engine.Conn, completion cqe) {
	d.consumeRecvCompletion(c, completion)
	d.PerformActions(c)
}

// consumeRecvCompletion gives the completion's buffer back whatever the handler does.
func (d *driver) consumeRecvCompletion(c *engine.Conn, completion cqe) {
	if completion.flags&cqeBuffer != 0 {
		defer d.buffers.recycleBuffer(completion)
	}
	if completion.flags&cqeMore == 0 {
		d.clearOps(c, receiving|canceling)
	}
	switch armed := c.DriverFlags(); {
	case armed&loop.Busy != 0:
		d.deferRecvCompletion(c, completion)
	case armed&closing == 0:
		var in []byte
		if completion.res > 0 {
			in = d.buffers.receivedBytes(completion)
		}
		d.handleRecvResult(c, completion.res, in)
		d.classifyReceive(c, completion)
	}
}

// multishotMax is how much a receive brings of a connection that sends much. A receive that
// goes on by itself fills up to 32 buffers for it before we can stop it, whatever
// the connection may have; so such a connection is received from once at a time, and
// without a buffer of the ring where those may not be enough for all.
const multishotMax = 8 << 10

// classifyReceive notes whether the connection sends much: more than there was room for, too.
func (d *driver) classifyReceive(c *engine.Conn, completion cqe) {
	switch armed := c.DriverFlags(); {
	case completion.res >= multishotMax, completion.res > 0 && d.buffers.filledBuffer(completion):
		c.SetDriverFlags(armed &^ smallReceives)
		d.cancelReceive(c)
	case completion.res > 0:
		c.SetDriverFlags(armed | smallReceives)
	}
}

// handleRecvResult gives the core what a receive has brought.
func (d *driver) handleRecvResult(c *engine.Conn, result int32, received []byte) {
	switch {
	case result > 0:
		c.SetDriverFlags(c.DriverFlags() | recentlyActive)
		c.OnRead(received)
		d.loop.QueueIfBulk(c, int(result))
	case result == 0:
		c.OnEOF()
	case result == -int32(unix.ENOBUFS):
		if !d.buffers.provideMoreBuffers() {
			d.loop.QueueYielded(c)
		}
	case result == -int32(unix.ECANCELED), result == -int32(unix.EAGAIN), result == -int32(unix.EINTR):
	default:
		c.OnTransportError(syscall.Errno(-result))
	}
}

// deferRecvCompletion keeps a receive's completion until the connection is back.
func (d *driver) deferRecvCompletion(c *engine.Conn, completion cqe) {
	var received []byte
	if completion.res > 0 {
		received = slices.Clone(d.buffers.receivedBytes(completion))
	}
	d.loop.DeferUntilReturned(c, func() { d.handleRecvResult(c, completion.res, received) })
	d.cancelReceive(c)
}

// cancelReceive ends the receive that is under way, if there is one.
func (d *driver) cancelReceive(c *engine.Conn) {
	if armed := c.DriverFlags(); armed&(receiving|canceling) == receiving {
		c.SetDriverFlags(armed | canceling)
		d.submitCancel(tagRecv | uint64(c.Slot()))
	}
}

// cancelInputOps has all that is under way to receive end.
func (d *driver) cancelInputOps(c *engine.Conn) {
	d.loop.TrackExpiry(c)
	d.cancelReceive(c)
	if c.DriverFlags()&polling != 0 {
		d.submitCancel(tagPoll | uint64(c.Slot()))
	}
}

// CanRead says whether nothing that is under way reads from the connection.
func (d *driver) CanRead(c *engine.Conn) bool { return c.DriverFlags()&(closing|receiving) == 0 }

// ReadOnce receives what is there, unless a receive is under way, which has been given
// earlier bytes or will be.
func (d *driver) ReadOnce(c *engine.Conn) bool {
	if !d.CanRead(c) {
		return false
	}
	if d.readBuffer == nil {
		d.readBuffer = make([]byte, engine.ReadSize)
	}
	n, errno := sock.Recv(c.FD(), d.readBuffer)
	switch {
	case errno == 0 && n > 0:
		d.handleRecvResult(c, int32(n), d.readBuffer[:n])
		if c.SetDriverFlags(c.DriverFlags() &^ smallReceives); n < multishotMax {
			c.SetDriverFlags(c.DriverFlags() | smallReceives)
		}
		if n < len(d.readBuffer) {
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

// submitReceive submits a receive: one that goes on until it is canceled or fails, if the
// last was small.
func (d *driver) submitReceive(c *engine.Conn) {
	armed := c.DriverFlags()
	c.SetDriverFlags(armed | receiving)
	d.pendingReceives++
	d.loop.TrackFastSweep(1)
	s := d.ring.nextSubmission()
	s.op, s.fd, s.flags = opRecv, c.FD(), sqeBufferSelect
	if armed&smallReceives != 0 {
		s.ioprio = recvMultishot
	}
	s.user = tagRecv | uint64(c.Slot())
}
