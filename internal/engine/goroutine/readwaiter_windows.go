package goroutine

import (
	"net"
	"syscall"
	"time"
)

// readWaiter waits until a connection is readable.
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
	waited := false // RawConn.Read waits by reading 0 bytes
	return w.raw.Read(func(uintptr) bool {
		done := waited
		waited = true
		return done
	})
}

// waitUnlessDone calls the function done once. If done returns false, waitUnlessDone sleeps for 1 ms.
func (w *readWaiter) waitUnlessDone(done func() bool) error {
	if !done() {
		time.Sleep(time.Millisecond)
	}
	return nil
}
