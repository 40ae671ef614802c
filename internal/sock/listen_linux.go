package sock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Parameters of TCP keepalive. The idle time is longer than package net's default, with which a million silent
// connections would cause 67,000 probes per second.
const (
	keepaliveIdle     = 120 // seconds
	keepaliveInterval = 15  // seconds
	keepaliveProbes   = 4
)

// NewKeepaliveListenConfig returns a configuration for listeners whose connections inherit TCP_NODELAY and keepalive.
// If reusePort is true, several listeners can share a port. control, if not nil, is called with each socket before it
// is bound.
func NewKeepaliveListenConfig(reusePort bool, control ControlFunc) net.ListenConfig {
	lc := net.ListenConfig{
		KeepAlive: -1, // inherited instead of set on each connection
		Control: func(network, address string, raw syscall.RawConn) error {
			var err error
			if e := raw.Control(func(fd uintptr) { err = setTCPNoDelayAndKeepalive(int(fd), network, reusePort) }); e != nil {
				return e
			}
			if err == nil && control != nil {
				err = control(network, address, raw)
			}
			return err
		},
	}
	lc.SetMultipathTCP(false)
	return lc
}

func setTCPNoDelayAndKeepalive(fd int, network string, reusePort bool) error {
	if len(network) < 3 || network[:3] != "tcp" {
		return nil
	}
	set := []struct{ level, name, value int }{
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, keepaliveIdle},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, keepaliveInterval},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepaliveProbes},
	}
	if reusePort {
		set = append(set, struct{ level, name, value int }{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1})
	}
	for _, o := range set {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return fmt.Errorf("set socket option %d at level %d: %w", o.name, o.level, err)
		}
	}
	return nil
}

// SetNonblockNoDelayKeepalive makes a listener non-blocking, and sets TCP_NODELAY and keepalive on a TCP listener.
func SetNonblockNoDelayKeepalive(l net.Listener) error {
	return withDescriptor(l, func(fd int) error {
		if err := unix.SetNonblock(fd, true); err != nil {
			return err
		}
		return setTCPNoDelayAndKeepalive(fd, l.Addr().Network(), false)
	})
}

// SetBacklog limits the number of connections that wait to be accepted from l. A backlog of 0 changes nothing.
func SetBacklog(l net.Listener, backlog int) error {
	if backlog == 0 {
		return nil
	}
	return withDescriptor(l, func(fd int) error { return unix.Listen(fd, backlog) })
}

// SetConnNoDelayKeepalive sets TCP_NODELAY and keepalive on a connection.
func SetConnNoDelayKeepalive(fd int32) error { return setTCPNoDelayAndKeepalive(int(fd), "tcp", false) }

func setNotSentLowat(fd uintptr, bytes int) error {
	return unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, bytes)
}

// SetOnListener sets all options except KeepNagle on l. Connections accepted from l inherit the options.
func (o Options) SetOnListener(l net.Listener) error {
	network := l.Addr().Network()
	err := withDescriptor(l, func(fd int) error {
		return o.setAllExceptDelay(uintptr(fd), strings.HasPrefix(network, "tcp"))
	})
	if err != nil {
		return fmt.Errorf("set socket options %+v: %w", o, err)
	}
	return nil
}

// KeepaliveTimeout is the time after which the kernel ends a silent connection whose peer answers no keepalive probes.
const KeepaliveTimeout = (keepaliveIdle + keepaliveProbes*keepaliveInterval) * time.Second

// SetDeadPeerTimeoutFD limits the time for which sent data may stay unacknowledged (TCP_USER_TIMEOUT, see tcp(7)). The
// limit applies to connections that a TCP listener accepts later. Listeners of other protocols are left unchanged. If
// timeout is 0, the kernel's limit of about a quarter of an hour applies.
//
// If disableKeepalive is true, keepalive is turned off, for a server that detects dead peers itself. With keepalive, a
// timeout shorter than KeepaliveTimeout is raised to KeepaliveTimeout, because it could otherwise end a silent
// connection after a single lost probe.
func SetDeadPeerTimeoutFD(listenerFD int32, timeout time.Duration, disableKeepalive bool) {
	if disableKeepalive {
		_ = unix.SetsockoptInt(int(listenerFD), unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0)
	} else if timeout > 0 {
		timeout = max(timeout, KeepaliveTimeout)
	}
	if timeout > 0 {
		ms := min(max(timeout.Milliseconds(), 1), math.MaxInt32)
		_ = unix.SetsockoptInt(int(listenerFD), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(ms))
	}
}

// SetDeadPeerTimeout is like SetDeadPeerTimeoutFD, but takes a listener of package net.
func SetDeadPeerTimeout(l net.Listener, timeout time.Duration, disableKeepalive bool) {
	_ = withDescriptor(l, func(fd int) error {
		SetDeadPeerTimeoutFD(int32(fd), timeout, disableKeepalive)
		return nil
	})
}

// maxBindAttempts is the maximum number of ports that ListenReusePort tries if it may choose the port.
const maxBindAttempts = 16

// ListenReusePort opens socketCount listeners that share the address and port of addr. If the port in addr is 0 or
// empty, it chooses a free port. It fails if another program uses the port. control, if not nil, is called with each
// socket before it is bound.
func ListenReusePort(network, addr string, socketCount int, control ControlFunc) ([]net.Listener, error) {
	return retryListenReusePortIfAnyPort(addr, socketCount, func(addr string, shared bool) (net.Listener, error) {
		lc := NewKeepaliveListenConfig(shared, control)
		return lc.Listen(context.Background(), network, addr)
	})
}

type listenFunc func(addr string, shared bool) (net.Listener, error)

func retryListenReusePortIfAnyPort(addr string, socketCount int, listen listenFunc) (listeners []net.Listener, err error) {
	_, port, _ := net.SplitHostPort(addr) // the listener reports errors in addr
	for range maxBindAttempts {
		listeners, err = listenReusePortOnce(addr, socketCount, listen)
		if port != "0" && port != "" || !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return listeners, err
}

func listenReusePortOnce(addr string, socketCount int, listen listenFunc) (listeners []net.Listener, err error) {
	first, err := listen(addr, false)
	if err != nil {
		return nil, err
	}
	if socketCount == 1 {
		return []net.Listener{first}, nil
	}
	at := first.Addr().String()
	first.Close()
	for range socketCount {
		l, err := listen(at, true)
		if err != nil {
			for _, l := range listeners {
				l.Close()
			}
			return nil, err
		}
		listeners = append(listeners, l)
	}
	return listeners, nil
}

// StartDial starts to connect to target and returns the socket without waiting. The socket becomes writable when the
// attempt has succeeded or failed. TakeSocketError then returns the result. If source is valid, it becomes the source
// address.
func StartDial(target netip.AddrPort, source netip.Addr, options Options) (int32, error) {
	family := unix.AF_INET
	if target.Addr().Is6() && !target.Addr().Is4In6() {
		family = unix.AF_INET6
	}
	return startConnect(family, options, func(fd int) error {
		if err := setNoDelayUnless(fd, options.KeepNagle); err != nil {
			return err
		}
		if err := bindSourceAddrIfValid(fd, source); err != nil {
			return err
		}
		return unix.Connect(fd, toSockaddr(target))
	})
}

// StartDialUnix is like StartDial, but connects to a unix stream socket. A path that begins with @ is the name of an
// abstract socket. StartDialUnix fails with EAGAIN if the listener's queue is full.
func StartDialUnix(path string, options Options) (int32, error) {
	return startConnect(unix.AF_UNIX, options, func(fd int) error {
		return unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	})
}

func startConnect(family int, options Options, connect func(fd int) error) (int32, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err = options.setAllExceptDelay(uintptr(fd), family != unix.AF_UNIX); err == nil {
		err = connect(fd)
	}
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		unix.Close(fd)
		return -1, err
	}
	return int32(fd), nil
}

func setNoDelayUnless(fd int, keepDelay bool) error {
	if keepDelay {
		return nil
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
}

func bindSourceAddrIfValid(fd int, source netip.Addr) error {
	if !source.IsValid() {
		return nil
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
		return err
	}
	return unix.Bind(fd, toSockaddr(netip.AddrPortFrom(source, 0)))
}

// SetBindAddressNoPort makes the kernel choose the source port when the socket connects, and not when it is bound.
// Connections to different targets can then have the same source port. SetBindAddressNoPort can be used as
// net.Dialer.Control.
func SetBindAddressNoPort(_, _ string, raw syscall.RawConn) error {
	var err error
	if e := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	}); e != nil {
		return e
	}
	return err
}

func toSockaddr(a netip.AddrPort) unix.Sockaddr {
	if ip := a.Addr().Unmap(); ip.Is4() {
		return &unix.SockaddrInet4{Addr: ip.As4(), Port: int(a.Port())}
	}
	sa := &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
	if zone := a.Addr().Zone(); zone != "" {
		if i, err := net.InterfaceByName(zone); err == nil {
			sa.ZoneId = uint32(i.Index)
		}
	}
	return sa
}
