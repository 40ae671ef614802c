package goroutine

import (
	"net"
	"syscall"
	"time"
)

// waiter waits until a connection is readable. On Windows RawConn.Read waits
// by a read of no bytes, which ends when some are there.
type waiter struct{ raw syscall.RawConn }

func (w *waiter) init(nc net.Conn) (err error) {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return syscall.EINVAL
	}
	w.raw, err = sc.SyscallConn()
	return err
}

func (w *waiter) readable() error {
	waited := false
	return w.raw.Read(func(uintptr) bool {
		done := waited
		waited = true
		return done
	})
}

// idle waits a little. Here a wait that does not read ends at once when there is
// something to read.
func (w *waiter) idle(done func() bool) error {
	if !done() {
		time.Sleep(time.Millisecond)
	}
	return nil
}
