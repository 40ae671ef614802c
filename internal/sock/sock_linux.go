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

// SendAll sends p, which is not empty, and up to 63 pieces behind it in one call, and says how many
// bytes went, 0 where it failed. A call for p alone takes the kernel less.
func SendAll(fd int32, p []byte, behind [][]byte) int {
	if len(behind) > 0 {
		return sendPieces(fd, p, behind)
	}
	n, _ := Send(fd, p)
	return max(n, 0) // it is -1 where it failed
}

func sendPieces(fd int32, p []byte, behind [][]byte) int {
	var vec [64]unix.Iovec
	vec[0].Base = &p[0]
	vec[0].SetLen(len(p))
	m := 1
	for _, p := range behind {
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
			return max(int(n), 0) // it is -1 where it failed
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

// ShutWrite ends the output of a connection.
func ShutWrite(fd int32) error { return unix.Shutdown(int(fd), unix.SHUT_WR) }

// Shutdown shuts both directions of a connection, or gives up connecting. It wakes
// whoever waits for it.
func Shutdown(fd int32) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) } // an error means that it has ended

// Disconnect ends a TCP connection with a reset, or gives up connecting, and reports
// whether it could: a unix socket can't. It wakes whoever waits for it.
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

// Close closes descriptors. A non-blocking socket without SO_LINGER never
// blocks in close.
func Close(fds ...int32) {
	for _, fd := range fds {
		_, _, _ = syscall.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0)
	}
}

// SendFileNow is SendFile for a blocking socket: it is a non-blocking one meanwhile. Only
// its owner may begin something on it.
func SendFileNow(fd int32, f *os.File, offset int64, n int) (int, syscall.Errno) {
	flags, _, errno := syscall.RawSyscall(unix.SYS_FCNTL, uintptr(fd), unix.F_GETFL, 0)
	if errno == 0 {
		_, _, errno = syscall.RawSyscall(unix.SYS_FCNTL, uintptr(fd), unix.F_SETFL, flags|unix.O_NONBLOCK)
	}
	if errno != 0 {
		return 0, errno
	}
	n, errno = SendFile(fd, f, offset, n)
	_, _, _ = syscall.RawSyscall(unix.SYS_FCNTL, uintptr(fd), unix.F_SETFL, flags) // as it was
	return n, errno
}

// SendFile sends up to n bytes of a file, from an offset on, to a non-blocking socket.
// 0 bytes without an error mean the end of the file. It waits for the disk where it
// has to, so it does tell the scheduler.
func SendFile(fd int32, f *os.File, offset int64, n int) (int, syscall.Errno) {
	from := int(f.Fd())
	for {
		sent, err := unix.Sendfile(int(fd), from, &offset, n)
		switch errno, _ := err.(syscall.Errno); errno {
		case syscall.EINTR:
		case 0:
			return sent, 0
		default:
			return 0, errno
		}
	}
}

// Pipe moves bytes from one socket to another within the kernel (splice(2)). It is for one
// goroutine at a time. No call waits.
type Pipe struct {
	in, out int32
	made    bool
}

// Open makes the pipe, if that is not done yet, and says whether there is one.
func (p *Pipe) Open() bool {
	if p.made {
		return true
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		return false // there may be descriptors later
	}
	p.in, p.out, p.made = int32(fds[1]), int32(fds[0]), true
	return true
}

// Close closes it, with what is in it. It may be opened again.
func (p *Pipe) Close() {
	if p.made {
		Close(p.in)
		Close(p.out)
		p.made = false
	}
}

// Fill moves up to n bytes of what a socket has received into the pipe. No bytes and no
// error are the peer's end; EINVAL says that this socket can't.
func (p *Pipe) Fill(from int32, n int) (int, syscall.Errno) { return splice(from, p.in, n) }

// Empty moves up to n bytes of what is in the pipe to a socket.
func (p *Pipe) Empty(to int32, n int) (int, syscall.Errno) { return splice(p.out, to, n) }

func splice(from, to int32, n int) (int, syscall.Errno) {
	for {
		moved, _, errno := syscall.RawSyscall6(unix.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0, uintptr(n), unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		switch errno {
		case 0:
			return int(moved), 0
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}

// Read takes bytes out of the pipe.
func (p *Pipe) Read(to []byte) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall(unix.SYS_READ, uintptr(p.out), uintptr(unsafe.Pointer(&to[0])), uintptr(len(to)))
		if errno != syscall.EINTR {
			return int(n), errno
		}
	}
}
