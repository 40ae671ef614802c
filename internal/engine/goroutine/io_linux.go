package goroutine

import (
	"errors"
	"io"
	"net"
	"syscall"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// sendRefusal answers a connection that is turned away, without waiting: this is the
// acceptor. Input that has come is thrown away: otherwise the kernel would send a
// reset, which can destroy the answer.
func sendRefusal(nc net.Conn, answer []byte) {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_, _ = sock.Send(int32(fd), answer) // what it does not take is lost
		_ = sock.ShutWrite(int32(fd))
		var unread [4096]byte
		_, _ = sock.Recv(int32(fd), unread[:])
	})
}

// transport reads and writes a connection through its RawConn: it tries the
// call first, which cannot block, and waits in Go's poller when it has to. The
// function given to RawConn is made once, because making it anew would cost an
// allocation each time. Every field costs an idle connection its bytes.
type transport struct {
	step  func(fd uintptr) bool
	raw   syscall.RawConn
	n     int32 // what the last step has read, or written so far
	errno int16
	op    operation
}

// operation is what the next step does.
type operation uint8

const (
	readWaiting operation = iota
	readTrying
	resting
	writing
	sendingFile
)

func (c *conn) initIO() error {
	sc, ok := c.nc.(syscall.Conn)
	if !ok {
		return syscall.ENOTSOCK
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return err
	}
	c.io.raw, c.io.step = raw, c.step
	return raw.Control(func(fd uintptr) { c.SetFD(int32(fd)) })
}

// direct is Host.Direct. The descriptor is open, because it is the connection's own
// goroutine that closes it, and that calls the handler.
func direct(c *engine.Conn, p []byte, behind [][]byte) int { return sock.SendAll(c.FD(), p, behind) }

// step is called by RawConn, at first and whenever there may be more to do; it
// answers whether it is done.
func (c *conn) step(fd uintptr) bool {
	switch c.io.op {
	case writing:
		return c.writeStep(int32(fd))
	case sendingFile:
		return c.fileStep(int32(fd))
	case readTrying:
		c.recv(int32(fd))
		return true
	case resting:
		return c.prepareWait()
	}
	if !c.mayRead() {
		c.io.errno = int16(syscall.EAGAIN)
		return true // and not prepareWait: the poller has reported the input already
	}
	tried, done := c.splice(int32(fd))
	if !tried {
		done = c.recv(int32(fd))
		c.hasRead()
	}
	return done || c.prepareWait()
}

// recv tries to read. Where nothing is there it gives the buffer back and says
// so.
func (c *conn) recv(fd int32) bool {
	n, errno := sock.Recv(fd, c.takeBuffer())
	c.io.n, c.io.errno = int32(n), int16(errno)
	if errno == syscall.EAGAIN {
		c.releaseBuffer()
		return false
	}
	return true
}

// sendBlocked is prepareWait for output of which nothing is taken.
func (c *conn) sendBlocked() bool {
	c.wasBlocked = true
	c.OnSendBlocked(c.group.now())
	return c.prepareWait()
}

// read waits for input and reads once. It returns nothing when mail came just
// before the wait.
func (c *conn) read() ([]byte, error) { return c.readAs(readWaiting) }

// tryRead reads what is there and does not wait.
func (c *conn) tryRead() ([]byte, error) { return c.readAs(readTrying) }

func (c *conn) readAs(does operation) ([]byte, error) {
	c.io.op = does
	err := c.io.raw.Read(c.io.step)
	c.parked.Store(false)
	switch errno := syscall.Errno(c.io.errno); {
	case err != nil:
		return nil, err
	case errno == syscall.EAGAIN:
		return nil, nil
	case errno != 0:
		return nil, errno
	case c.io.n == 0:
		return nil, io.EOF
	}
	return c.got(int(c.io.n)), nil
}

// waitMail waits for mail and does not read.
func (c *conn) waitMail() error {
	c.io.op = resting
	err := c.io.raw.Read(c.io.step)
	c.parked.Store(false)
	return err
}

// write writes all output. It waits for room, unless mail comes, if none is taken,
// and otherwise returns, so that the core knows what is left. It says how much was
// taken.
func (c *conn) write() (int, error) { return c.writeAs(writing) }

func (c *conn) writeAs(does operation) (int, error) {
	c.io.op, c.io.n, c.io.errno = does, 0, 0
	err := c.io.raw.Write(c.io.step)
	c.parked.Store(false)
	if errno := syscall.Errno(c.io.errno); err == nil && errno != 0 && errno != syscall.EAGAIN {
		err = errno
	}
	return int(c.io.n), err
}

// awaitRoom has a goroutine wait until the kernel takes output again, while the owner
// reads on; the owner writes nothing meanwhile. It ends when it has found room, when the
// owner is woken, which is mostly in vain, and when the connection is closed.
func (c *conn) awaitRoom() bool {
	if c.awaitingRoom {
		return true
	}
	c.awaitingRoom = true
	c.OnSendBlocked(c.group.now())
	c.group.running.Go(func() {
		_ = c.io.raw.Write(func(fd uintptr) bool { return sock.Writable(int32(fd)) }) // an error the next Send tells
		c.request(writable)
	})
	return true
}

// sendFile has the kernel send a file, as far as it can, and waits like write. At its
// end, and whatever is wrong, it is read instead: that tells, or the next write does.
func (c *conn) sendFile() {
	if f, _, _ := c.NextFilePart(); f == nil {
		c.LoadFilePiece()
		return
	}
	c.publish()
	n, err := c.writeAs(sendingFile)
	if c.wasBlocked {
		c.wasBlocked = false
		c.updateClock()
	}
	if _, failed := errors.AsType[syscall.Errno](err); failed || n == 0 && err == nil && c.io.errno == 0 {
		c.LoadFilePiece()
		return
	}
	c.OnSent(n)
	c.afterSend(err)
}

func (c *conn) fileStep(fd int32) bool {
	f, offset, n := c.NextFilePart()
	n, errno := sock.SendFile(fd, f, offset, n)
	c.io.n, c.io.errno = int32(n), int16(errno)
	return errno != syscall.EAGAIN || c.sendBlocked()
}

func (c *conn) writeStep(fd int32) bool {
	if c.bulk && c.wasBlocked {
		c.group.turns.take()
		defer c.group.turns.end()
	}
	for out := c.Output()[c.io.n:]; len(out) > 0; {
		n, errno := sock.Send(fd, out)
		c.io.errno = int16(errno)
		if errno == syscall.EAGAIN {
			return c.io.n > 0 || c.HasIndependentDirections() || c.sendBlocked()
		}
		if errno != 0 {
			break
		}
		c.io.n += int32(n)
		out = out[n:]
	}
	return true
}
