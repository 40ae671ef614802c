package loop

import (
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file moves what a bulk connection of a relay receives to the other connection
// within the kernel (splice(2)), by way of one pipe that each loop has: it is empty
// between two calls, so that a relay costs neither descriptors nor memory. What the other
// connection does not take at once is read from the pipe, and waits as other output does.

// spliceSize is how much is moved at a time: as much as a read brings.
const spliceSize = engine.ReadSize

// pipe is a loop's, made when it is first used.
type pipe struct {
	in, out int32 // its ends, as the loop uses them: it fills in and empties out
	made    bool
	failed  bool // the system does not splice, or has no pipe to give
	rest    []byte
}

func (p *pipe) open() bool {
	if p.made || p.failed {
		return p.made
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		return false // there may be descriptors later
	}
	p.in, p.out, p.made = int32(fds[1]), int32(fds[0]), true
	return true
}

func (p *pipe) close() {
	if p.made {
		sock.Close(p.in)
		sock.Close(p.out)
		p.made = false
	}
}

// readOnce reads once from a connection that is bulk.
func (l *Loop) readOnce(c *engine.Conn) {
	o := c.SpliceTo()
	if o == nil || !l.driver.MayRead(c) || !l.pipe.open() {
		l.driver.Read(c)
		return
	}
	if l.acceptor.Blocking {
		defer sock.NonBlocking(c.FD(), o.FD())()
	}
	n, errno := sock.Splice(c.FD(), l.pipe.in, spliceSize)
	switch {
	case errno == syscall.EAGAIN:
		c.Empty()
	case errno == syscall.EINVAL: // of a socket that can't
		l.pipe.failed = true
		l.pipe.close()
		l.driver.Read(c)
	case errno != 0:
		c.Failed(errno)
	case n == 0:
		c.PeerClosed()
	default:
		l.passOnFromPipe(c, o, n)
		l.Brought(c, n)
	}
}

// passOnFromPipe moves what is in the pipe to the other connection.
func (l *Loop) passOnFromPipe(c, o *engine.Conn, n int) {
	moved, errno := sock.Splice(l.pipe.out, o.FD(), n)
	if errno != 0 {
		moved = 0
	}
	c.Spliced(o, moved)
	if errno != 0 && errno != syscall.EAGAIN {
		l.pipe.close() // with what is in it
		o.Failed(errno)
		l.touchLater(o)
		return
	}
	if l.pipe.rest == nil && moved < n {
		l.pipe.rest = make([]byte, spliceSize)
	}
	for moved < n {
		m, errno := sock.Read(l.pipe.out, l.pipe.rest)
		if errno != 0 || m == 0 {
			l.pipe.close()
			c.Failed(syscall.EIO) // what was in the pipe is lost
			return
		}
		c.Arrived(l.pipe.rest[:m])
		moved += m
	}
}
