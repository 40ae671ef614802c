// Package sock contains the socket system calls. Calls that are made often and cannot block bypass the Go scheduler.
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

type Options struct {
	// SendBuffer and ReceiveBuffer are SO_SNDBUF and SO_RCVBUF in bytes; 0 leaves the kernel's sizes. They are set
	// before the handshake, which fixes the window scale.
	SendBuffer, ReceiveBuffer int
	// NotSentLowat is the value of TCP_NOTSENT_LOWAT. The socket accepts no more output while it has more than this
	// number of unsent bytes. If NotSentLowat is 0, the kernel's default applies.
	NotSentLowat int
	// KeepNagle keeps Nagle's algorithm on, which delays small writes. By default, TCP_NODELAY turns the algorithm off.
	KeepNagle bool
	// ResetOnClose makes TCP connections end with a reset when the socket is closed or the process ends.
	ResetOnClose bool
}

// setAllExceptDelay sets all options except KeepNagle on a socket. Call it before the socket connects.
func (o Options) setAllExceptDelay(fd uintptr, isTCP bool) error {
	err := errors.Join(setBufferSizeUnlessZero(fd, syscall.SO_SNDBUF, o.SendBuffer), setBufferSizeUnlessZero(fd, syscall.SO_RCVBUF, o.ReceiveBuffer))
	if err == nil && isTCP && o.NotSentLowat > 0 {
		err = setNotSentLowat(fd, o.NotSentLowat)
	}
	if err == nil && isTCP && o.ResetOnClose {
		err = setResetOnClose(fd)
	}
	return err
}

func setBufferSizeUnlessZero(fd uintptr, option, size int) error {
	if size == 0 {
		return nil
	}
	return setSocketOption(fd, option, size)
}

// DialControl sets all options except KeepNagle on a socket. It can be used as net.Dialer.Control.
func (o Options) DialControl(network, _ string, raw syscall.RawConn) error {
	var err error
	if e := raw.Control(func(fd uintptr) { err = o.setAllExceptDelay(fd, strings.HasPrefix(network, "tcp")) }); e != nil {
		return e
	}
	return err
}

// ControlFunc is called with a socket before the socket is bound. See net.ListenConfig.Control.
type ControlFunc = func(network, address string, raw syscall.RawConn) error

type AcceptQueue struct {
	Addr netip.AddrPort
	// Waiting is the number of connections in the queue. Max is the listener's backlog or net.core.somaxconn, whichever
	// is smaller; the kernel admits one connection more.
	Waiting, Max int64
	// Inode is the inode number of the listening socket. A link in /proc/PID/fd shows it in the form "socket:[123]".
	Inode uint32
}

// Segments counts TCP segments. The counts are sums over several sockets, each since the socket was created.
type Segments struct {
	// Sockets is the number of sockets in the sums. Connections that wait to be accepted are not included.
	Sockets int
	// In and Out count segments that carry data.
	In, Out int64
}

// ConnInfo contains the kernel's information about a TCP connection.
type ConnInfo struct {
	// Cookie identifies the connection. No other connection since boot has the same value.
	Cookie        uint64
	Local, Remote netip.AddrPort
	// BytesIn are bytes received; BytesOut are bytes sent and acknowledged.
	BytesIn, BytesOut int64
	// Unread counts received bytes that the program has not read. Unsent counts written bytes without acknowledgement.
	Unread, Unsent int64
	// SinceInput is the time since the peer last sent data; RTT is the round-trip time.
	SinceInput, RTT time.Duration
}

func IsLocalAddr(addr netip.Addr) bool {
	if addr.IsLoopback() {
		return true
	}
	own, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(own, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && p.Addr().WithZone("") == addr
	})
}
