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

// Keepalive: probes after 2 minutes of silence, every 15 s, four of them. Package
// net begins after 15 s, which for a million connections that are silent is 67,000
// probes a second, and as many answers. The kernel keeps timers of that length in
// coarse buckets, so they come in bursts; it seems that on the loopback, whose queue
// has 1,000 places (net.core.netdev_max_backlog), too many of them were dropped: a
// million idle connections ended with ETIMEDOUT.
const (
	keepIdle     = 120 // seconds
	keepInterval = 15  // seconds
	keepCount    = 4
)

// ListenConfig makes a listener whose options its connections inherit:
// no delay, keepalive, if asked for a port shared between the listeners of
// one program, and what control sets, if it is not nil. It is plain TCP: package net would take Multipath TCP where there is
// some, whose listeners know no TCP_USER_TIMEOUT.
func ListenConfig(reusePort bool, control Control) net.ListenConfig {
	lc := net.ListenConfig{
		KeepAlive: -1, // inherited instead of set on each connection
		Control: func(network, address string, raw syscall.RawConn) error {
			var err error
			if e := raw.Control(func(fd uintptr) { err = listenOptions(int(fd), network, reusePort) }); e != nil {
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

func listenOptions(fd int, network string, reusePort bool) error {
	if len(network) < 3 || network[:3] != "tcp" {
		return nil
	}
	set := []struct{ level, name, value int }{
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, keepIdle},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, keepInterval},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepCount},
	}
	if reusePort {
		set = append(set, struct{ level, name, value int }{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1})
	}
	for _, o := range set {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return fmt.Errorf("socket option %d/%d: %w", o.level, o.name, err)
		}
	}
	return nil
}

// Prepare makes a caller's listener, which may come as anything, a non-blocking
// one with the options that ListenConfig sets.
func Prepare(l net.Listener) error {
	return withDescriptor(l, func(fd int) error {
		if err := unix.SetNonblock(fd, true); err != nil {
			return err
		}
		return listenOptions(fd, l.Addr().Network(), false)
	})
}

// Backlog sets how many connections may wait for the accept, as far as
// net.core.somaxconn allows it; 0 leaves that as it is.
func Backlog(l net.Listener, n int) error {
	if n == 0 {
		return nil
	}
	return withDescriptor(l, func(fd int) error { return unix.Listen(fd, n) })
}

// PrepareConn gives a connection the options that it has not inherited, because
// it was there before its listener was prepared.
func PrepareConn(fd int32) error { return listenOptions(int(fd), "tcp", false) }

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

// KeepaliveTimeout is after how long a silence a peer that answers no keepalive probe is
// given up.
const KeepaliveTimeout = (keepIdle + keepCount*keepInterval) * time.Second

// SetUserTimeout has the kernel give up connections that a listener will accept when what
// was sent has not been acknowledged for d (TCP_USER_TIMEOUT, tcp(7)); without it
// that takes a quarter of an hour. 0 changes nothing.
//
// watched says that the server itself finds out about peers that have gone: then
// there is no keepalive. Otherwise there is, and what is not acknowledged is given
// up after KeepaliveTimeout, if that is more than d: with the option a single keepalive probe that
// is lost ends the connection, if it has been silent for so long as the option says
// (tcp_keepalive_timer in Linux's net/ipv4/tcp_timer.c).
//
// A listener that is not of TCP is left as it is, and one of Multipath TCP, which a
// caller may have made, knows no TCP_USER_TIMEOUT.
func SetUserTimeout(listener int32, d time.Duration, watched bool) {
	if watched {
		_ = unix.SetsockoptInt(int(listener), unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0)
	} else if d > 0 {
		d = max(d, KeepaliveTimeout)
	}
	if d > 0 {
		ms := min(max(d.Milliseconds(), 1), math.MaxInt32)
		_ = unix.SetsockoptInt(int(listener), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(ms))
	}
}

// SetListenerTimeout is SetUserTimeout for a listener of package net.
func SetListenerTimeout(l net.Listener, d time.Duration, watched bool) {
	_ = withDescriptor(l, func(fd int) error {
		SetUserTimeout(int32(fd), d, watched)
		return nil
	})
}

// bindTries is how often a free port is looked for that nobody takes before all
// listeners have it.
const bindTries = 16

// ListenShared listens n times on an address, with sockets that share its port if they
// are several. The first one asks for the address alone, because sockets that share a
// port would hide that another program has it; it then makes way for those that share.
// If somebody takes the port in that moment, and any port will do, it is another one.
func ListenShared(network, addr string, n int, control Control) ([]net.Listener, error) {
	return listenShared(addr, n, func(addr string, shared bool) (net.Listener, error) {
		lc := ListenConfig(shared, control)
		return lc.Listen(context.Background(), network, addr)
	})
}

// listenFunc listens on an address, alone or with a socket that shares its port.
type listenFunc func(addr string, shared bool) (net.Listener, error)

func listenShared(addr string, n int, listen listenFunc) (all []net.Listener, err error) {
	_, port, _ := net.SplitHostPort(addr) // what is wrong with it Listen says
	for range bindTries {
		all, err = listenOnce(addr, n, listen)
		if port != "0" && port != "" || !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return all, err
}

func listenOnce(addr string, n int, listen listenFunc) (all []net.Listener, err error) {
	first, err := listen(addr, false)
	if err != nil {
		return nil, err
	}
	if n == 1 {
		return []net.Listener{first}, nil
	}
	at := first.Addr().String()
	first.Close()
	for range n {
		l, err := listen(at, true)
		if err != nil {
			for _, l := range all {
				l.Close()
			}
			return nil, err
		}
		all = append(all, l)
	}
	return all, nil
}

// Dial starts to connect, without waiting: the socket becomes writable when it
// is done, and SocketError then says how it went. With a source, the port is
// chosen at connect (IP_BIND_ADDRESS_NO_PORT), so that one source address can
// have as many connections as there are ports for each destination.
func Dial(target netip.AddrPort, source netip.Addr, options Options) (int32, error) {
	family := unix.AF_INET
	if target.Addr().Is6() && !target.Addr().Is4In6() {
		family = unix.AF_INET6
	}
	return dial(family, options, func(fd int) error {
		if err := setDelay(fd, options.Delay); err != nil {
			return err
		}
		if err := bindLate(fd, source); err != nil {
			return err
		}
		return unix.Connect(fd, sockaddr(target))
	})
}

// DialUnix is Dial for a unix stream socket at path; one with @ in front is an
// abstract name. When its listener's queue is full it fails with EAGAIN: there is
// nothing to wait for.
func DialUnix(path string, options Options) (int32, error) {
	return dial(unix.AF_UNIX, options, func(fd int) error {
		return unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	})
}

// dial makes a socket, with options, and connects it.
func dial(family int, options Options, connect func(fd int) error) (int32, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err = options.set(uintptr(fd), family != unix.AF_UNIX); err == nil {
		err = connect(fd)
	}
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		unix.Close(fd)
		return -1, err
	}
	return int32(fd), nil
}

func setDelay(fd int, delay bool) error {
	if delay {
		return nil // as it is
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
}

// bindLate binds to a source, if there is one, without a port.
func bindLate(fd int, source netip.Addr) error {
	if !source.IsValid() {
		return nil
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
		return err
	}
	return unix.Bind(fd, sockaddr(netip.AddrPortFrom(source, 0)))
}

// LatePort is for net.Dialer.Control: it leaves the choice of the port to the
// moment of connecting; see Dial.
func LatePort(_, _ string, raw syscall.RawConn) error {
	var err error
	if e := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	}); e != nil {
		return e
	}
	return err
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
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
