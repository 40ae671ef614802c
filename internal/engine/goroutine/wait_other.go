//go:build !linux && !windows

package goroutine

import (
	"net"
	"syscall"
)

// waiter waits until a connection is readable: it looks whether bytes are
// there, without taking them, because Go's poller reports only changes.
type waiter struct{ raw syscall.RawConn }

func (w *waiter) init(nc net.Conn) (err error) {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return syscall.ENOTSOCK
	}
	w.raw, err = sc.SyscallConn()
	return err
}

func (w *waiter) readable() error {
	var one [1]byte
	return w.raw.Read(func(fd uintptr) bool {
		_, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK)
		return err != syscall.EAGAIN && err != syscall.EINTR
	})
}
