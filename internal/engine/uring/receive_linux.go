package uring

import (
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/loop"
	"github.com/myriad-go/myriad/internal/sock"
)

func (d *driver) handleRecvCompletion(c *engine.Conn, completion cqe) {
	d.deliverOrDeferRecvCompletion(c, completion)
	d.PerformActions(c)
}

// deliverOrDeferRecvCompletion passes received bytes to the handler, or stores a copy while a worker is using c.
func (d *driver) deliverOrDeferRecvCompletion(c *engine.Conn, completion cqe) {
	if completion.flags&cqeBuffer != 0 {
		defer d.buffers.releaseReceived(completion)
	}
	if completion.flags&cqeMore == 0 {
		d.clearOpsAndUncountReceive(c, receiving|canceling)
	}
	switch armed := c.DriverFlags(); {
	case armed&loop.Busy != 0:
		d.deferRecvUntilWorkerReturns(c, completion)
	case armed&closing == 0:
		var in []byte
		if completion.res > 0 {
			in = d.buffers.receivedBytes(completion)
		}
		d.handleRecvResult(c, completion.res, in)
		d.chooseReceiveModeBySize(c, completion)
	}
}

// multishotMax is the limit in bytes below which a receive counts as small. Multishot receives are used only for
// connections whose last receive was small.
const multishotMax = 8 << 10

func (d *driver) chooseReceiveModeBySize(c *engine.Conn, completion cqe) {
	switch armed := c.DriverFlags(); {
	case completion.res >= multishotMax, completion.res > 0 && d.buffers.completionFilledBuffer(completion):
		c.SetDriverFlags(armed &^ smallReceives)
		d.cancelReceiveIfPending(c) // before a multishot receive fills many buffers
	case completion.res > 0:
		c.SetDriverFlags(armed | smallReceives)
	}
}

func (d *driver) handleRecvResult(c *engine.Conn, sizeOrErrno int32, received []byte) {
	switch {
	case sizeOrErrno > 0:
		c.OnRead(received)
		d.loop.QueueIfBulk(c, int(sizeOrErrno))
	case sizeOrErrno == 0:
		c.OnEOF()
	case sizeOrErrno == -int32(unix.ENOBUFS):
		if !d.buffers.provideMoreBuffers() {
			d.loop.QueueForLaterRead(c)
		}
	case sizeOrErrno == -int32(unix.ECANCELED), sizeOrErrno == -int32(unix.EAGAIN), sizeOrErrno == -int32(unix.EINTR):
	default:
		c.OnTransportError(syscall.Errno(-sizeOrErrno))
	}
}

func (d *driver) deferRecvUntilWorkerReturns(c *engine.Conn, completion cqe) {
	var received []byte
	if completion.res > 0 {
		received = slices.Clone(d.buffers.receivedBytes(completion))
	}
	d.loop.DeferUntilWorkerReturns(c, func() { d.handleRecvResult(c, completion.res, received) })
	d.cancelReceiveIfPending(c)
}

func (d *driver) cancelReceiveIfPending(c *engine.Conn) {
	if armed := c.DriverFlags(); armed&(receiving|canceling) == receiving {
		c.SetDriverFlags(armed | canceling)
		d.submitCancel(tagRecv | uint64(c.Slot()))
	}
}

func (d *driver) cancelInputOps(c *engine.Conn) {
	d.loop.UpdateExpiryTracking(c)
	d.cancelReceiveIfPending(c)
	if c.DriverFlags()&polling != 0 {
		d.submitCancel(tagPoll | uint64(c.Slot()))
	}
}

// CanRead reports whether ReadOnce may read from c. It returns false while c is closing or has a receive in progress.
func (d *driver) CanRead(c *engine.Conn) bool { return c.DriverFlags()&(closing|receiving) == 0 }

// ReadOnce makes one receive call on c and delivers the received bytes. If CanRead returns false, ReadOnce does
// nothing, because the bytes could overtake those of the receive in progress.
func (d *driver) ReadOnce(c *engine.Conn) (gotBytes bool) {
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
			c.CloseIfTimedOutAfterEmptyRead()
		}
		return true
	case errno == 0:
		c.OnEOF()
	case errno == unix.EAGAIN:
		c.CloseIfTimedOutAfterEmptyRead()
	default:
		c.OnTransportError(errno)
	}
	return false
}

// submitReceive submits a multishot receive if the last receive was small, and otherwise a single receive.
func (d *driver) submitReceive(c *engine.Conn) {
	armed := c.DriverFlags()
	c.SetDriverFlags(armed | receiving)
	d.pendingReceives++
	d.loop.AdjustFastSweepReasons(1)
	s := d.ring.nextFreeSubmission()
	s.op, s.fd, s.flags = opRecv, c.FD(), sqeBufferSelect
	if armed&smallReceives != 0 {
		s.ioprio = recvMultishot
	}
	s.user = tagRecv | uint64(c.Slot())
}
