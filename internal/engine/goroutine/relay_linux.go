package goroutine

import (
	"syscall"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file relays to a partner's socket; see engine.Runtime.SendToPartner. The partner's RawConn keeps its descriptor
// open during the call. Input of a bulk connection moves within the kernel, through a pipe. Each bulk read in progress
// uses a pipe of the engine, which is empty after the call.

// callWithConnDescriptor calls f with the descriptor of target, unless target is closed.
func (e *goroutineEngine) callWithConnDescriptor(target *engine.Conn, f func(fd uintptr)) {
	e.mu.Lock()
	c := e.conns.conn(target.Slot())
	e.mu.Unlock()
	if c != nil && &c.Conn == target {
		_ = c.io.raw.Control(f) // fails when the connection is closed, without calling f
	}
}

func (e *goroutineEngine) sendToPartner(partner *engine.Conn, data []byte) (n int) {
	e.callWithConnDescriptor(partner, func(fd uintptr) {
		if sent, errno := sock.Send(int32(fd), data); errno == 0 { // the partner's next operation reports an error
			n = sent
		}
	})
	return n
}

// spliceToPartnerAndReleasePermit moves input from the socket fd directly to the relay partner's socket with splice(2).
// It then releases the read permit. hadInput reports whether input was available. If splice is not possible,
// triedAndReleased is false. In this case, the caller still has the read permit and must read the input itself.
func (c *conn) spliceToPartnerAndReleasePermit(fd int32) (triedAndReleased, hadInput bool) {
	if !c.bulk || c.Layer() != nil || !c.MaySendOnPartnerSocket() {
		return false, false
	}
	pipe := c.engine.pipePool.takeIdleOrUnopenedPipe()
	defer c.engine.pipePool.keepOrCloseEmptyPipe(pipe)
	if !pipe.Open() {
		return false, false
	}
	received := 0
	c.TrySendOnPartnerSocket(func(partner *engine.Conn) {
		var errno syscall.Errno
		received, errno = pipe.SpliceFromSocket(fd, engine.ReadSize)
		triedAndReleased, hadInput = errno != syscall.EINVAL, errno != syscall.EAGAIN // EINVAL means no support
		c.io.n, c.io.errno = int32(received), int16(errno)
		if received > 0 {
			c.sendPipedBytesAndReadRest(pipe, partner, received)
		}
	})
	if triedAndReleased {
		c.releaseReadPermit()
		c.bulk = received > bulkReadSize || !hadInput
	}
	return triedAndReleased, hadInput
}

func (c *conn) sendPipedBytesAndReadRest(pipe *sock.SplicePipe, partner *engine.Conn, pipeBytes int) {
	moved := 0
	c.engine.callWithConnDescriptor(partner, func(fd uintptr) { moved, _ = pipe.SpliceToSocket(int32(fd), pipeBytes) })
	c.CountSpliced(moved)
	if moved == pipeBytes {
		c.io.errno = int16(syscall.EAGAIN) // reports no input to the core
		return
	}
	c.lastReadFull = true // selects a large buffer
	if m, errno := pipe.Read(c.acquireReadBuffer()); errno != 0 || m != pipeBytes-moved {
		pipe.Close() // together with its content
		c.io.errno = int16(syscall.EIO)
		return
	}
	c.io.n = int32(pipeBytes - moved)
}

type pipePool struct{ idle chan *sock.SplicePipe }

func (p *pipePool) initAndSetSendToPartner(e *goroutineEngine) {
	p.idle = make(chan *sock.SplicePipe, cap(e.readLimiter.tokens))
	e.host.SendToPartner = e.sendToPartner
}

func (p *pipePool) takeIdleOrUnopenedPipe() *sock.SplicePipe {
	select {
	case pipe := <-p.idle:
		return pipe
	default:
		return new(sock.SplicePipe)
	}
}

func (p *pipePool) keepOrCloseEmptyPipe(emptyPipe *sock.SplicePipe) {
	select {
	case p.idle <- emptyPipe:
	default:
		emptyPipe.Close()
	}
}

func (p *pipePool) closeWithIdlePipes() {
	close(p.idle)
	for pipe := range p.idle {
		pipe.Close()
	}
}
