package uring

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/loop"
	"github.com/myriad-go/myriad/internal/sock"
)

func (d *driver) handleOrDeferSendCompletion(c *engine.Conn, completion cqe) {
	d.clearAndUncountOps(c, sending)
	if c.DriverFlags()&loop.Busy != 0 {
		d.loop.DeferUntilWorkerReturns(c, func() { d.handleSendResult(c, completion.res) })
		return
	}
	d.handleSendResult(c, completion.res)
	d.PerformActions(c)
}

func (d *driver) handleOrDeferWritable(c *engine.Conn) {
	d.clearAndUncountOps(c, sending)
	if c.DriverFlags()&loop.Busy != 0 {
		d.loop.DeferUntilWorkerReturns(c, c.OnWritable)
		return
	}
	c.OnWritable()
	d.PerformActions(c)
}

func (d *driver) handleSendResult(c *engine.Conn, sizeOrErrno int32) {
	c.OnSent(int(max(sizeOrErrno, 0)))
	c.OnWritable()
	if sizeOrErrno < 0 && c.DriverFlags()&closing == 0 {
		switch errno := syscall.Errno(-sizeOrErrno); errno {
		case unix.EAGAIN, unix.EINTR, unix.ENOBUFS, unix.ENOMEM, unix.ECANCELED:
		default:
			c.OnTransportError(errno)
		}
	}
}

// submitSend submits a send of the output. The output must not move until the send has completed.
func (d *driver) submitSend(c *engine.Conn) {
	out := c.Output()
	c.OnSendStarted()
	c.SetDriverFlags(c.DriverFlags() | sending)
	s := d.ring.nextFreeSubmission()
	s.op, s.fd, s.opFlags = opSend, c.FD(), unix.MSG_NOSIGNAL
	s.addr, s.len = uint64(uintptr(unsafe.Pointer(&out[0]))), uint32(len(out))
	s.user = tagSend | uint64(c.Slot())
}

// sendFileOutput sends a part of a file with a system call, because io_uring has no sendfile operation.
func (d *driver) sendFileOutput(c *engine.Conn) {
	if d.loop.SendNextFilePart(c, sock.SendFileOnBlockingSocket); c.WantsWritable() {
		c.SetDriverFlags(c.DriverFlags() | sending)
		d.submitPoll(c.FD(), tagWritable|uint64(c.Slot()), unix.POLLOUT, 0)
	}
}
