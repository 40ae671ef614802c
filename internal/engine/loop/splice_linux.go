package loop

import (
	"syscall"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file moves what a bulk connection of a relay receives to the other connection
// within the kernel (splice(2)), by way of one pipe that each loop has: it is empty
// between two calls, so that a relay costs neither descriptors nor memory. What the other
// connection does not take at once is read from the pipe, and waits as other output does.

// readOnce reads once from a connection that is bulk.
func (l *Loop) readOnce(c *engine.Conn) {
	o := c.SpliceTarget()
	if o == nil || !l.driver.MayRead(c) || !l.pipe.Open() {
		l.driver.Read(c)
		return
	}
	if l.acceptor.Blocking {
		defer sock.NonBlocking(c.FD(), o.FD())()
	}
	n, errno := l.pipe.Fill(c.FD(), engine.ReadSize)
	switch {
	case errno == syscall.EAGAIN:
		c.OnReadEmpty()
	case errno == syscall.EINVAL: // of a socket that can't
		l.driver.Read(c)
	case errno != 0:
		c.OnTransportError(errno)
	case n == 0:
		c.OnEOF()
	default:
		l.passOnFromPipe(c, o, n)
		l.NoteRead(c, n)
	}
}

// passOnFromPipe moves what is in the pipe to the other connection.
func (l *Loop) passOnFromPipe(c, o *engine.Conn, n int) {
	moved, errno := l.pipe.Empty(o.FD(), n)
	c.CountSpliced(moved)
	if errno != 0 && errno != syscall.EAGAIN {
		l.pipe.Close() // with what is in it
		o.OnTransportError(errno)
		l.SettleLater(o)
		return
	}
	if l.spill == nil && moved < n {
		l.spill = make([]byte, engine.ReadSize)
	}
	for moved < n {
		m, errno := l.pipe.Read(l.spill)
		if errno != 0 || m == 0 {
			l.pipe.Close()
			c.OnTransportError(syscall.EIO) // what was in the pipe is lost
			return
		}
		c.OnRead(l.spill[:m])
		moved += m
	}
}
