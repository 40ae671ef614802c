package goroutine

import (
	"syscall"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file is how a connection of a relay sends to its partner's socket: see
// engine.Host.Pass. The partner's RawConn keeps its descriptor from being closed meanwhile.
// What a connection receives that sends much is moved within the kernel, by way of a pipe
// that the group has: one for each connection whose turn it is, and empty between two calls.

// withDescriptor calls f with a connection's descriptor, unless it is closed.
func (e *goroutineEngine) withDescriptor(target *engine.Conn, f func(fd uintptr)) {
	e.mu.Lock()
	c := e.conns.conn(target.Slot())
	e.mu.Unlock()
	if c != nil && &c.Conn == target {
		_ = c.io.raw.Control(f) // it fails when it is closed, and then f is not called
	}
}

// sendToPartner is Host.Pass. An error the partner finds itself.
func (e *goroutineEngine) sendToPartner(partner *engine.Conn, data []byte) (n int) {
	e.withDescriptor(partner, func(fd uintptr) {
		if sent, errno := sock.Send(int32(fd), data); errno == 0 {
			n = sent
		}
	})
	return n
}

// spliceToPartner moves what a connection receives whose turn it is to its partner, if that may be,
// and ends the turn; done says whether anything was there. What the partner doesn't take is
// as if it were read.
func (c *conn) spliceToPartner(fd int32) (tried, done bool) {
	if !c.bulk || c.Layer() != nil || !c.HasFastPath() {
		return false, false
	}
	pipe := c.engine.pipePool.acquirePipe()
	defer c.engine.pipePool.releasePipe(pipe)
	if !pipe.Open() {
		return false, false
	}
	received := 0
	c.SendFastPath(func(partner *engine.Conn) {
		var errno syscall.Errno
		received, errno = pipe.SpliceFrom(fd, engine.ReadSize)
		tried, done = errno != syscall.EINVAL, errno != syscall.EAGAIN // EINVAL is of a socket that can't
		c.io.n, c.io.errno = int32(received), int16(errno)
		if received > 0 {
			c.sendFromPipe(pipe, partner, received)
		}
	})
	if tried {
		c.releaseReadPermit()
		c.bulk = received > bulkReadSize || !done
	}
	return tried, done
}

// sendFromPipe moves what is in a pipe to the partner.
func (c *conn) sendFromPipe(pipe *sock.SplicePipe, partner *engine.Conn, n int) {
	moved := 0
	c.engine.withDescriptor(partner, func(fd uintptr) { moved, _ = pipe.SpliceTo(int32(fd), n) })
	c.CountSpliced(moved)
	if moved == n {
		c.io.errno = int16(syscall.EAGAIN) // there is nothing for the core
		return
	}
	c.lastReadFull = true // for a large buffer
	if m, errno := pipe.Read(c.acquireReadBuffer()); errno != 0 || m != n-moved {
		pipe.Close() // with what is in it
		c.io.errno = int16(syscall.EIO)
		return
	}
	c.io.n = int32(n - moved)
}

// pipePool are those of a group that nobody uses.
type pipePool struct{ idle chan *sock.SplicePipe }

// enable makes room for as many as there are turns, and has relays use them.
func (p *pipePool) enable(e *goroutineEngine) {
	p.idle = make(chan *sock.SplicePipe, cap(e.readLimiter.tokens))
	e.host.SendToPartner = e.sendToPartner
}

func (p *pipePool) acquirePipe() *sock.SplicePipe {
	select {
	case pipe := <-p.idle:
		return pipe
	default:
		return new(sock.SplicePipe)
	}
}

func (p *pipePool) releasePipe(pipe *sock.SplicePipe) {
	select {
	case p.idle <- pipe:
	default:
		pipe.Close()
	}
}

// closeIdlePipes is for when all connections have ended.
func (p *pipePool) closeIdlePipes() {
	close(p.idle)
	for pipe := range p.idle {
		pipe.Close()
	}
}
