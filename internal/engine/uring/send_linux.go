package uring

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/loop"
	"github.com/myriad-go/myriad/internal/sock"
)

// sent takes the completion of a send.
func (d *driver) sent(c *engine.Conn, e cqe) {
	d.clear(c, sending)
	if c.DriverFlags()&loop.Busy != 0 {
		d.loop.Later(c, func() { d.took(c, e.res) })
		return
	}
	d.took(c, e.res)
	d.Settle(c)
}

// writable takes the completion of a poll for room.
func (d *driver) writable(c *engine.Conn) {
	d.clear(c, sending)
	if c.DriverFlags()&loop.Busy != 0 {
		d.loop.Later(c, c.OnWritable)
		return
	}
	c.OnWritable()
	d.Settle(c)
}

// took tells the core what a send has taken.
func (d *driver) took(c *engine.Conn, res int32) {
	c.OnSent(int(max(res, 0)))
	c.OnWritable()
	if res < 0 && c.DriverFlags()&dying == 0 {
		switch errno := syscall.Errno(-res); errno {
		case unix.EAGAIN, unix.EINTR, unix.ENOBUFS, unix.ENOMEM, unix.ECANCELED:
		default:
			c.OnTransportError(errno)
		}
	}
}

// send submits what is owed. The connection keeps it until it is sent.
func (d *driver) send(c *engine.Conn) {
	out := c.Output()
	c.OnSendStarted()
	c.SetDriverFlags(c.DriverFlags() | sending)
	s := d.ring.next()
	s.op, s.fd, s.opFlags = opSend, c.FD(), unix.MSG_NOSIGNAL
	s.addr, s.len = uint64(uintptr(unsafe.Pointer(&out[0]))), uint32(len(out))
	s.user = ofSend | uint64(c.Slot())
}

// sendFile has the kernel send a file: the ring has no operation for that.
func (d *driver) sendFile(c *engine.Conn) {
	if d.loop.SendFile(c, sock.SendFileNow); c.WantsWritable() {
		c.SetDriverFlags(c.DriverFlags() | sending)
		d.poll(c.FD(), ofRoom|uint64(c.Slot()), unix.POLLOUT, 0)
	}
}
