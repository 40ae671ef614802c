package sock

import (
	"fmt"
	"math"
	"net"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func setUnsent(fd uintptr, bytes int) error {
	return unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, bytes)
}

// ForAccepted has the connections that a listener will accept inherit the options, but for Delay.
func (o Options) ForAccepted(l net.Listener) error {
	network := l.Addr().Network()
	err := withDescriptor(l, func(fd int) error {
		return o.set(uintptr(fd), strings.HasPrefix(network, "tcp"))
	})
	if err != nil {
		return fmt.Errorf("socket options %+v: %w", o, err)
	}
	return nil
}

// Gone is after which time without a word an idle peer that answers no keepalive
// probe is given up.
const Gone = (keepIdle + keepCount*keepInterval) * time.Second

// Patience has the kernel give up connections that a listener will accept when what
// was sent has not been acknowledged for d (TCP_USER_TIMEOUT, tcp(7)); without it
// that takes a quarter of an hour. 0 changes nothing.
//
// watched says that the server itself finds out about peers that have gone: then
// there is no keepalive. Otherwise there is, and what is not acknowledged is given
// up after Gone, if that is more than d: with the option a single keepalive probe that
// is lost ends the connection, if it has been silent for so long as the option says
// (tcp_keepalive_timer in Linux's net/ipv4/tcp_timer.c).
//
// A listener that is not of TCP is left as it is, and one of Multipath TCP, which a
// caller may have made, knows no TCP_USER_TIMEOUT.
func Patience(listener int32, d time.Duration, watched bool) {
	if watched {
		_ = unix.SetsockoptInt(int(listener), unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0)
	} else if d > 0 {
		d = max(d, Gone)
	}
	if d > 0 {
		ms := min(max(d.Milliseconds(), 1), math.MaxInt32)
		_ = unix.SetsockoptInt(int(listener), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(ms))
	}
}

// ListenerPatience is Patience for a listener of package net.
func ListenerPatience(l net.Listener, d time.Duration, watched bool) {
	_ = withDescriptor(l, func(fd int) error {
		Patience(int32(fd), d, watched)
		return nil
	})
}
