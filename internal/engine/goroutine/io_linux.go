package goroutine

import (
	"io"
	"syscall"

	"github.com/myriad-go/myriad/internal/sock"
)

// transport reads and writes a connection through its RawConn: it tries the
// call first, which cannot block, and waits in Go's poller when it has to.
// The functions given to RawConn are made once, because making them anew would
// cost an allocation each time.
type transport struct {
	buffer
	c       *conn
	raw     syscall.RawConn
	readFn  func(fd uintptr) bool
	writeFn func(fd uintptr) bool
	out     []byte // what is being written
	n       int
	errno   syscall.Errno
}

func (t *transport) init(c *conn) error {
	sc, ok := c.nc.(syscall.Conn)
	if !ok {
		return syscall.ENOTSOCK
	}
	raw, err := sc.SyscallConn()
	t.c, t.raw, t.readFn, t.writeFn = c, raw, t.readOnce, t.writeOnce
	return err
}

// read waits for input and reads once.
func (t *transport) read() ([]byte, error) {
	err := t.raw.Read(t.readFn)
	t.c.parked.Store(false)
	switch {
	case err != nil:
		return nil, err
	case t.errno == syscall.EAGAIN: // mail came just before the wait
		return nil, nil
	case t.errno != 0:
		return nil, t.errno
	case t.n == 0:
		return nil, io.EOF
	}
	return t.got(t.n), nil
}

// readOnce tries to read. Where nothing is there it gives the buffer back and
// asks to wait, unless there is mail.
func (t *transport) readOnce(fd uintptr) bool {
	t.n, t.errno = sock.Recv(int32(fd), t.take())
	if t.errno != syscall.EAGAIN {
		return true
	}
	t.release()
	return t.stay()
}

// stay says that the owner is about to wait, and whether it should not.
func (t *transport) stay() bool {
	t.c.parked.Store(true)
	return t.c.attention()
}

// tryRead reads what is there and does not wait.
func (t *transport) tryRead() []byte {
	err := t.raw.Read(func(fd uintptr) bool {
		t.n, t.errno = sock.Recv(int32(fd), t.take())
		return true
	})
	if err != nil || t.errno != 0 || t.n == 0 {
		return nil
	}
	return t.got(t.n)
}

// write writes all of p, and waits for room as often as it must. It says how
// much was taken.
func (t *transport) write(p []byte) (int, error) {
	t.out, t.n, t.errno = p, 0, 0
	err := t.raw.Write(t.writeFn)
	t.c.parked.Store(false)
	t.out = nil
	if err == nil && t.errno != 0 && t.errno != syscall.EAGAIN {
		err = t.errno
	}
	return t.n, err
}

func (t *transport) writeOnce(fd uintptr) bool {
	var n int
	for t.n < len(t.out) {
		n, t.errno = sock.Send(int32(fd), t.out[t.n:])
		if t.errno != 0 {
			break
		}
		t.n += n
	}
	if t.errno != syscall.EAGAIN {
		return true
	}
	return t.stay()
}
