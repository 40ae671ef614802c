package goroutine

import (
	"net"
	"syscall"
	"time"
)

// readWaiter waits until a connection is readable. On Windows, RawConn.Read waits by a read of 0 bytes.
type readWaiter struct{ raw syscall.RawConn }

func (w *readWaiter) init(netConn net.Conn) (err error) {
	sc, ok := netConn.(syscall.Conn)
	if !ok {
		return syscall.EINVAL
	}
	w.raw, err = sc.SyscallConn()
	return err
}

func (w *readWaiter) waitUntilReadable() error {
	waited := false
	return w.raw.Read(func(uintptr) bool {
		done := waited
		waited = true
		return done
	})
}

// waitUntil calls done once. After false, it sleeps for a millisecond, because RawConn.Read would return at once while
// there is input.
func (w *readWaiter) waitUntil(done func() bool) error {
	if !done() {
		time.Sleep(time.Millisecond)
	}
	return nil
}
