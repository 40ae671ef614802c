// Package sock is where socket calls are made: listening, dialling, options,
// and the calls of the hot path, which go to the kernel without telling the Go
// scheduler because they cannot block.
package sock

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Options are those of sockets that connect, or that are accepted.
type Options struct {
	// SendBuffer and ReceiveBuffer are SO_SNDBUF and SO_RCVBUF, in bytes; 0
	// leaves them to the kernel. They are set before the connection is made,
	// when the receive buffer decides on the window's scale.
	SendBuffer, ReceiveBuffer int
	// Unsent is TCP_NOTSENT_LOWAT, in bytes: with more than that not sent yet, the
	// kernel takes no more output. 0 leaves it to the kernel.
	Unsent int
	// Delay leaves TCP_NODELAY off.
	Delay bool
	// Reset has a TCP connection end with a reset when its socket is closed,
	// also by the end of the process.
	Reset bool
}

// set sets those that are set before a socket connects.
func (o Options) set(fd uintptr, tcp bool) error {
	err := errors.Join(setBuffer(fd, syscall.SO_SNDBUF, o.SendBuffer), setBuffer(fd, syscall.SO_RCVBUF, o.ReceiveBuffer))
	if err == nil && tcp && o.Unsent > 0 {
		err = setUnsent(fd, o.Unsent)
	}
	if err == nil && tcp && o.Reset {
		err = resetOnClose(fd)
	}
	return err
}

func setBuffer(fd uintptr, name, size int) error {
	if size == 0 {
		return nil
	}
	return setSocketOption(fd, name, size)
}

// Control is for net.Dialer.Control: it sets all but Delay.
func (o Options) Control(network, _ string, raw syscall.RawConn) error {
	var err error
	if e := raw.Control(func(fd uintptr) { err = o.set(fd, strings.HasPrefix(network, "tcp")) }); e != nil {
		return e
	}
	return err
}

// Control is called with a socket before it is bound, as that of net.ListenConfig.
type Control = func(network, address string, raw syscall.RawConn) error

// Queue is a listening TCP socket's queue of connections that wait to be accepted.
type Queue struct {
	At netip.AddrPort
	// Waiting connections are in it now. The kernel lets in one more than Most: the
	// least of what was asked for and net.core.somaxconn.
	Waiting, Most int64
	// Inode is the socket's, as in "socket:[123]" of /proc/PID/fd.
	Inode uint32
}

// Segments are TCP segments of sockets, since each was made.
type Segments struct {
	// Sockets is how many sockets there are. Those that wait to be accepted are not
	// among them, nor do they count below.
	Sockets int
	// In and Out are segments that carry data.
	In, Out int64
}

// Talk is what the kernel has counted of a TCP connection.
type Talk struct {
	// Cookie identifies it among all that there are or have been.
	Cookie        uint64
	Local, Remote netip.AddrPort
	// In and Out are the bytes received, and sent and acknowledged, since it began.
	In, Out int64
	// Unread bytes wait for the program, Unsent for the peer to take them, those on
	// their way among them.
	Unread, Unsent int64
	// Heard is how long ago the peer last sent something, RTT the time to it and back.
	Heard, RTT time.Duration
}

// IsLocal says whether an address is this machine's.
func IsLocal(addr netip.Addr) bool {
	if addr.IsLoopback() {
		return true
	}
	own, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(own, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && p.Addr().WithZone("") == addr
	})
}
