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
	d.clearOpsAndUncountReceive(c, sending)
	if c.DriverFlags()&loop.Busy != 0 {
		d.loop.DeferUntilWorkerReturns(c, func() { d.handleSendResult(c, completion.res) })
		return
	}
	d.handleSendResult(c, completion.res)
	d.PerformActions(c)
}

func (d *driver) handleOrDeferWritable(c *engine.Conn) {
	d.clearOpsAndUncountReceive(c, sending)
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

// submitSend submits a send of c's output. The output's memory must not change until the send has completed.
func (d *driver) submitSend(c *engine.Conn) {
	out := c.Output()
	c.OnSendStarted()
	c.SetDriverFlags(c.DriverFlags() | sending)
	s := d.ring.nextFreeSubmission()
	s.op, s.fd, s.opFlags = opSend, c.FD(), unix.MSG_NOSIGNAL
	s.addr, s.len = uint64(uintptr(unsafe.Pointer(&out[0]))), uint32(len(out))
	s.user = tagSend | uint64(c.Slot())
}

// sendFilePartBySyscall sends the next part of c's first queued file. If the kernel cannot accept more output at
// present, it submits a poll that completes when c is writable.
func (d *driver) sendFilePartBySyscall(c *engine.Conn) {
	// A system call, because io_uring has no sendfile operation.
	if d.loop.SendNextFilePart(c, sock.SendFileOnBlockingSocket); c.WantsWritable() {
		c.SetDriverFlags(c.DriverFlags() | sending)
		d.submitPoll(c.FD(), tagWritable|uint64(c.Slot()), unix.POLLOUT, 0)
	}
}

// queueHeartbeat queues a send of the message on c. If too many completions are pending, it sends the message
// immediately instead. The message must not change until submitAndCheckHeartbeats is called. accepted is the number of
// bytes that were queued or sent.
func (d *driver) queueHeartbeat(c *engine.Conn, message []byte) (accepted int) {
	if d.ring.completionCount() > cqEntries/2 {
		return sock.SendBuffers(c.FD(), message, nil)
	}
	s := d.ring.nextFreeSubmission()
	s.op, s.flags, s.fd, s.opFlags = opSend, sqeSkipSuccess, c.FD(), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT|unix.MSG_WAITALL
	s.addr, s.len = uint64(uintptr(unsafe.Pointer(&message[0]))), uint32(len(message))
	s.user = tagHeartbeat | uint64(c.Slot())
	return len(message)
}

func (d *driver) submitAndCheckHeartbeats() {
	r := d.ring
	r.enter(0, 0)
	// Failures must be handled before other output can follow.
	for i := uint32(0); i < r.completionCount() && r.broken == 0; i++ {
		done := &r.cqes[(*r.cqHead+i)&r.cqMask]
		if done.user&^(1<<32-1) == tagHeartbeat {
			slot := uint32(done.user)
			done.user = tagIgnored
			d.handleUnsentHeartbeat(d.loop.Conn(slot), done.res)
		}
	}
}

func (d *driver) handleUnsentHeartbeat(c *engine.Conn, sizeOrErrno int32) {
	switch sent := int(max(sizeOrErrno, 0)); {
	case c.FD() < 0 || !c.IsOpen() || c.DriverFlags()&loop.Busy != 0:
		return
	case sent > 0 && c.UnsentAndDroppedBytes() > 0: // its rest cannot be sent before the output
		c.OnTransportError(unix.EAGAIN)
	default:
		c.OnHeartbeatUnsent(sent)
	}
	d.PerformActions(c)
}
