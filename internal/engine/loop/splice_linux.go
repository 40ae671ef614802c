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

// readOrSplice reads once from a connection that is bulk.
func (l *Loop) readOrSplice(c *engine.Conn) {
	partner := c.SpliceTo()
	if partner == nil || !l.driver.CanRead(c) || !l.relayPipe.Open() {
		l.driver.ReadOnce(c)
		return
	}
	if l.acceptor.Blocking {
		defer sock.NonBlocking(c.FD(), partner.FD())()
	}
	n, errno := l.relayPipe.Fill(c.FD(), engine.ReadSize)
	switch {
	case errno == syscall.EAGAIN:
		c.Empty()
	case errno == syscall.EINVAL: // of a socket that can't
		l.driver.ReadOnce(c)
	case errno != 0:
		c.Failed(errno)
	case n == 0:
		c.PeerClosed()
	default:
		l.sendFromPipe(c, partner, n)
		l.QueueIfBulk(c, n)
	}
}

// sendFromPipe moves what is in the pipe to the other connection.
func (l *Loop) sendFromPipe(source, partner *engine.Conn, n int) {
	moved, errno := l.relayPipe.Empty(partner.FD(), n)
	source.Spliced(moved)
	if errno != 0 && errno != syscall.EAGAIN {
		l.relayPipe.Close() // with what is in it
		partner.Failed(errno)
		l.SettleLater(partner)
		return
	}
	if l.spliceBuffer == nil && moved < n {
		l.spliceBuffer = make([]byte, engine.ReadSize)
	}
	for moved < n {
		m, errno := l.relayPipe.Read(l.spliceBuffer)
		if errno != 0 || m == 0 {
			l.relayPipe.Close()
			source.Failed(syscall.EIO) // what was in the pipe is lost
			return
		}
		source.Arrived(l.spliceBuffer[:m])
		moved += m
	}
}
