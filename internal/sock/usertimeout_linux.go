package sock

import (
	"math"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// UserTimeout has the kernel give up connections that a listener will accept when
// what was sent, a keep-alive probe too, has not been acknowledged for so long:
// TCP_USER_TIMEOUT, tcp(7). Without it that takes a quarter of an hour. 0 changes
// nothing, and neither does a listener that is not of TCP.
func UserTimeout(listener int32, d time.Duration) {
	if d <= 0 {
		return
	}
	ms := min(max(d.Milliseconds(), 1), math.MaxInt32)
	_ = unix.SetsockoptInt(int(listener), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(ms))
}

// ListenerUserTimeout is UserTimeout for a listener of package net.
func ListenerUserTimeout(l net.Listener, d time.Duration) {
	_ = withDescriptor(l, func(fd int) error {
		UserTimeout(int32(fd), d)
		return nil
	})
}
