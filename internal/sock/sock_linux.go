package sock

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Recv receives into p, which must not be empty. It never blocks, so it does not
// tell the scheduler.
func Recv(fd int32, p []byte) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), unix.MSG_DONTWAIT, 0, 0)
		if errno != syscall.EINTR {
			return int(n), errno
		}
	}
}

// Send sends p, which must not be empty, without a SIGPIPE; like Recv it does
// not tell the scheduler.
func Send(fd int32, p []byte) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT, 0, 0)
		if errno != syscall.EINTR {
			return int(n), errno
		}
	}
}

// NonBlocking makes blocking sockets non-blocking for as long as calls take that have no
// flag for that, until what it returns is called.
func NonBlocking(fds ...int32) (again func()) {
	for _, fd := range fds {
		_ = unix.SetNonblock(int(fd), true)
	}
	return func() {
		for _, fd := range fds {
			_ = unix.SetNonblock(int(fd), false)
		}
	}
}

// SendAll sends pieces in one call, as Send does. There are no more than 64, and some of
// them are not empty.
func SendAll(fd int32, pieces [][]byte) (int, syscall.Errno) {
	var vec [64]unix.Iovec
	m := 0
	for _, p := range pieces {
		if len(p) > 0 {
			vec[m].Base = &p[0]
			vec[m].SetLen(len(p))
			m++
		}
	}
	msg := unix.Msghdr{Iov: &vec[0]}
	msg.SetIovlen(m)
	for {
		n, _, errno := syscall.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&msg)), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		if errno != syscall.EINTR {
			return int(n), errno
		}
	}
}

// Writable says whether a socket takes output now, or has failed.
func Writable(fd int32) bool {
	poll := []unix.PollFd{{Fd: fd, Events: unix.POLLOUT}}
	n, err := unix.Poll(poll, 0)
	return n > 0 || err != nil && err != unix.EINTR
}

// Acceptor accepts from non-blocking listeners. It is for one goroutine.
type Acceptor struct {
	// Blocking makes what is accepted a blocking socket.
	Blocking bool
	peer     unix.RawSockaddrAny
}

// Accept takes one connection, non-blocking unless asked otherwise, closed on
// exec. Options such as TCP_NODELAY come with it from the listener.
func (a *Acceptor) Accept(listener int32) (fd int32, peer netip.AddrPort, errno syscall.Errno) {
	size := uint32(unix.SizeofSockaddrAny)
	flags := uintptr(unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC)
	if a.Blocking {
		flags = unix.SOCK_CLOEXEC
	}
	n, _, errno := syscall.RawSyscall6(unix.SYS_ACCEPT4, uintptr(listener),
		uintptr(unsafe.Pointer(&a.peer)), uintptr(unsafe.Pointer(&size)),
		flags, 0, 0)
	if errno != 0 {
		return -1, peer, errno
	}
	return int32(n), addrPort(&a.peer), 0
}

// Peer is the address that a socket is connected to; the zero value if it has none with
// a port. It never blocks, so it does not tell the scheduler.
func Peer(fd int32) netip.AddrPort {
	return name(unix.SYS_GETPEERNAME, fd)
}

// LocalAddr is Peer for our side's address.
func LocalAddr(fd int32) netip.AddrPort { return name(unix.SYS_GETSOCKNAME, fd) }

func name(call uintptr, fd int32) netip.AddrPort {
	var sa unix.RawSockaddrAny
	size := uint32(unix.SizeofSockaddrAny)
	_, _, errno := syscall.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&size)))
	if errno != 0 {
		return netip.AddrPort{}
	}
	return addrPort(&sa)
}

// addrPort reads an address that the kernel wrote; the zero value for a family
// without ports.
func addrPort(sa *unix.RawSockaddrAny) netip.AddrPort {
	switch sa.Addr.Family {
	case unix.AF_INET:
		in := (*unix.RawSockaddrInet4)(unsafe.Pointer(sa))
		return netip.AddrPortFrom(netip.AddrFrom4(in.Addr), bigEndian(in.Port))
	case unix.AF_INET6:
		in := (*unix.RawSockaddrInet6)(unsafe.Pointer(sa))
		return netip.AddrPortFrom(netip.AddrFrom16(in.Addr), bigEndian(in.Port))
	}
	return netip.AddrPort{}
}

// bigEndian reads a port that lies in memory in network order.
func bigEndian(port uint16) uint16 {
	b := (*[2]byte)(unsafe.Pointer(&port))
	return uint16(b[0])<<8 | uint16(b[1])
}

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
// no delay, keepalive, and if asked for a port shared between the listeners of
// one program. It is plain TCP: package net would take Multipath TCP where there is
// some, whose listeners know no TCP_USER_TIMEOUT.
func ListenConfig(reusePort bool) net.ListenConfig {
	lc := net.ListenConfig{
		KeepAlive: -1, // inherited instead of set on each connection
		Control: func(network, address string, raw syscall.RawConn) error {
			var err error
			if e := raw.Control(func(fd uintptr) { err = listenOptions(int(fd), network, reusePort) }); e != nil {
				return e
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

// Detach takes the descriptor of a listener or a connection away from package net: it
// returns a descriptor of its own for the same socket. The caller closes both.
func Detach(l any) (int32, error) {
	own := -1
	err := withDescriptor(l, func(fd int) (err error) {
		own, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	return int32(own), err
}

func withDescriptor(l any, do func(fd int) error) error {
	sc, ok := l.(syscall.Conn)
	if !ok {
		return fmt.Errorf("%T has no descriptor; expected a listener or a connection of package net, such as *net.TCPListener", l)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) { err = do(int(fd)) }); e != nil {
		return e
	}
	return err
}

// NetConn makes a connection of package net of a descriptor, with one of its own for the
// same socket.
func NetConn(fd int32) (net.Conn, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(own), "")
	defer f.Close()
	return net.FileConn(f) // has another one
}

// Fetch gives a thread with a descriptor table of its own a copy of a descriptor of the
// process's table.
func Fetch(fd int32) (int32, error) {
	process, err := unix.PidfdOpen(unix.Getpid(), 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(process)
	own, err := unix.PidfdGetfd(process, int(fd), 0)
	return int32(own), err
}

// SocketError takes the error that the kernel keeps for a socket, 0 if none.
func SocketError(fd int32) syscall.Errno {
	e, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return unix.EBADF
	}
	return syscall.Errno(e)
}

// SetBlocking makes a socket a blocking one.
func SetBlocking(fd int32) syscall.Errno {
	flags, _, errno := syscall.RawSyscall(unix.SYS_FCNTL, uintptr(fd), unix.F_GETFL, 0)
	if errno == 0 {
		_, _, errno = syscall.RawSyscall(unix.SYS_FCNTL, uintptr(fd), unix.F_SETFL, flags&^unix.O_NONBLOCK)
	}
	return errno
}

// ShutWrite tells the peer that no more will come.
func ShutWrite(fd int32) error { return unix.Shutdown(int(fd), unix.SHUT_WR) }

// Sever shuts both directions of a connection, or gives up connecting. Whoever
// waits for it is told, also when it has ended before.
func Sever(fd int32) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) } // an error means that it has ended

// Disconnect ends a TCP connection with a reset, or gives up connecting, and says
// whether it could: a unix socket can't. Whoever waits for it is told.
func Disconnect(fd int32) bool {
	none := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	_, _, errno := syscall.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none))
	return errno == 0
}

// ResetOnClose makes the close of a socket send a reset, whoever closes it: the
// kernel, too, when the process is killed.
func ResetOnClose(fd int32) error { return resetOnClose(uintptr(fd)) }

// StopListening ends a listener, whoever else holds it.
func StopListening(fd int32) { _ = unix.Shutdown(int(fd), unix.SHUT_RD) } // an error means that it has ended

// Close closes a descriptor. A non-blocking socket without SO_LINGER never
// blocks in close.
func Close(fd int32) {
	_, _, _ = syscall.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0)
}
