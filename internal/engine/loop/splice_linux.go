package loop

import (
	"syscall"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file relays within the kernel by splice(2). Input of a bulk connection in a relay moves to its partner through
// one pipe per loop. The pipe is empty between two calls, so a relay needs neither descriptors nor memory. Bytes that
// the partner does not accept immediately are read from the pipe and queued like other output.

// readOrSpliceToPartner reads once from c. If c is part of a relay, it moves the input directly to the other connection
// with splice(2), if possible.
func (l *Loop) readOrSpliceToPartner(c *engine.Conn) {
	partner := c.SpliceTargetIfReady()
	if partner == nil || !l.driver.CanRead(c) || !l.relayPipe.Open() {
		l.driver.ReadOnce(c)
		return
	}
	if l.acceptor.Blocking {
		defer sock.SetNonblockTemporarily(c.FD(), partner.FD())()
	}
	n, errno := l.relayPipe.SpliceFromSocket(c.FD(), engine.ReadSize)
	switch {
	case errno == syscall.EAGAIN:
		c.CloseIfTimedOutAfterEmptyRead()
	case errno == syscall.EINVAL: // the socket does not support splice
		l.driver.ReadOnce(c)
	case errno != 0:
		c.OnTransportError(errno)
	case n == 0:
		c.OnEOF()
	default:
		l.sendPipedBytesAndReadRest(c, partner, n)
		l.QueueIfBulk(c, n)
	}
}

func (l *Loop) sendPipedBytesAndReadRest(source, partner *engine.Conn, pipeBytes int) {
	moved, errno := l.relayPipe.SpliceToSocket(partner.FD(), pipeBytes)
	source.CountSpliced(moved)
	if errno != 0 && errno != syscall.EAGAIN {
		l.relayPipe.Close() // together with its content
		partner.OnTransportError(errno)
		l.PerformActionsLater(partner)
		return
	}
	if l.spliceBuffer == nil && moved < pipeBytes {
		l.spliceBuffer = make([]byte, engine.ReadSize)
	}
	for moved < pipeBytes {
		m, errno := l.relayPipe.Read(l.spliceBuffer)
		if errno != 0 || m == 0 {
			l.relayPipe.Close()
			source.OnTransportError(syscall.EIO) // the content of the pipe is lost
			return
		}
		source.OnRead(l.spliceBuffer[:m])
		moved += m
	}
}
