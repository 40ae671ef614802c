//go:build !linux && !windows

package goroutine

import (
	"net"
	"syscall"
)

// readWaiter waits until a connection is readable.
type readWaiter struct{ raw syscall.RawConn }

func (w *readWaiter) init(netConn net.Conn) (err error) {
	sc, ok := netConn.(syscall.Conn)
	if !ok {
		return syscall.ENOTSOCK
	}
	w.raw, err = sc.SyscallConn()
	return err
}

func (w *readWaiter) waitUntilReadable() error {
	var one [1]byte
	var seen error                            // reading the socket's error clears it
	err := w.raw.Read(func(fd uintptr) bool { // peeks first, because Go's poller reports only changes
		_, _, seen = syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK)
		return seen != syscall.EAGAIN && seen != syscall.EINTR
	})
	if err == nil {
		err = seen
	}
	return err
}

// waitUnlessDone calls the function done at once, and again whenever input may have arrived. It returns when
// done returns true or the read deadline passes.
func (w *readWaiter) waitUnlessDone(done func() bool) error {
	return w.raw.Read(func(uintptr) bool { return done() })
}
