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

// control calls f with a connection's descriptor, unless it is closed.
func (g *group) control(ec *engine.Conn, f func(fd uintptr)) {
	g.mu.Lock()
	c := g.conns.get(ec.Slot())
	g.mu.Unlock()
	if c != nil && &c.Conn == ec {
		_ = c.io.raw.Control(f) // it fails when it is closed, and then f is not called
	}
}

// pass is Host.Pass. An error the partner finds itself.
func (g *group) pass(to *engine.Conn, p []byte) (n int) {
	g.control(to, func(fd uintptr) {
		if sent, errno := sock.Send(int32(fd), p); errno == 0 {
			n = sent
		}
	})
	return n
}

// splice moves what a connection receives whose turn it is to its partner, if that may be,
// and ends the turn; done says whether anything was there. What the partner doesn't take is
// as if it were read.
func (c *conn) splice(fd int32) (tried, done bool) {
	if !c.bulk || c.Layer() != nil || !c.HasFastPath() {
		return false, false
	}
	pipe := c.group.pipes.take()
	defer c.group.pipes.put(pipe)
	if !pipe.Open() {
		return false, false
	}
	got := 0
	c.SendFastPath(func(o *engine.Conn) {
		var errno syscall.Errno
		got, errno = pipe.Fill(fd, engine.ReadSize)
		tried, done = errno != syscall.EINVAL, errno != syscall.EAGAIN // EINVAL is of a socket that can't
		c.io.n, c.io.errno = int32(got), int16(errno)
		if got > 0 {
			c.passOn(pipe, o, got)
		}
	})
	if tried {
		c.hasRead()
		c.bulk = got > bulkRead || !done
	}
	return tried, done
}

// passOn moves what is in a pipe to the partner.
func (c *conn) passOn(pipe *sock.Pipe, to *engine.Conn, n int) {
	moved := 0
	c.group.control(to, func(fd uintptr) { moved, _ = pipe.Empty(int32(fd), n) })
	c.CountSpliced(moved)
	if moved == n {
		c.io.errno = int16(syscall.EAGAIN) // there is nothing for the core
		return
	}
	c.fullRead = true // for a large buffer
	if m, errno := pipe.Read(c.takeBuffer()); errno != 0 || m != n-moved {
		pipe.Close() // with what is in it
		c.io.errno = int16(syscall.EIO)
		return
	}
	c.io.n = int32(n - moved)
}

// pipes are those of a group that nobody uses.
type pipes struct{ idle chan *sock.Pipe }

// open makes room for as many as there are turns, and has relays use them.
func (p *pipes) open(g *group) {
	p.idle = make(chan *sock.Pipe, cap(g.turns.places))
	g.host.SendToPartner = g.pass
}

func (p *pipes) take() *sock.Pipe {
	select {
	case pipe := <-p.idle:
		return pipe
	default:
		return new(sock.Pipe)
	}
}

func (p *pipes) put(pipe *sock.Pipe) {
	select {
	case p.idle <- pipe:
	default:
		pipe.Close()
	}
}

// close is for when all connections have ended.
func (p *pipes) close() {
	close(p.idle)
	for pipe := range p.idle {
		pipe.Close()
	}
}
