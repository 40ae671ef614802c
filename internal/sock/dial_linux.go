package sock

import (
	"errors"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

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
