package loop

import (
	"syscall"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// Relaying within the kernel by splice(2). What a bulk connection of a relay receives moves to its partner
// through one pipe per loop. The pipe is empty between two calls, so a relay costs neither descriptors nor
// memory. What the partner does not accept at once is read from the pipe and queued like other output.

// readOrSpliceToPartner reads once from a bulk connection, or moves its input to its relay partner.
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
		l.sendPipeToPartner(c, partner, n)
		l.QueueIfBulk(c, n)
	}
}

func (l *Loop) sendPipeToPartner(source, partner *engine.Conn, pipeBytes int) {
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
