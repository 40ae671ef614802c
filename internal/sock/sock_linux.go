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

// Recv receives into p, which must not be empty. It does not block, and calls the kernel without notifying the Go
// scheduler.
func Recv(fd int32, p []byte) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), unix.MSG_DONTWAIT, 0, 0)
		if errno != syscall.EINTR {
			return int(n), errno
		}
	}
}

// Send sends p, which must not be empty. It does not block or raise SIGPIPE, and calls the kernel without notifying the
// Go scheduler.
func Send(fd int32, p []byte) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT, 0, 0)
		if errno != syscall.EINTR {
			return int(n), errno
		}
	}
}

// SetNonblockTemporarily makes blocking sockets non-blocking until setBlocking is called.
func SetNonblockTemporarily(blockingFDs ...int32) (setBlocking func()) {
	for _, fd := range blockingFDs {
		_ = unix.SetNonblock(int(fd), true)
	}
	return func() {
		for _, fd := range blockingFDs {
			_ = unix.SetNonblock(int(fd), false)
		}
	}
}

// SendBuffers sends the buffer first and then the buffers in rest, in one system call and without blocking. It returns
// the number of bytes sent, or 0 after an error. first must not be empty. rest may contain at most 63 buffers.
func SendBuffers(fd int32, first []byte, rest [][]byte) (sentOrZero int) {
	if len(rest) > 0 {
		return sendmsgBuffers(fd, first, rest)
	}
	n, _ := Send(fd, first)
	return max(n, 0) // Send returns -1 on failure
}

func sendmsgBuffers(fd int32, first []byte, rest [][]byte) (sentOrZero int) {
	var vec [64]unix.Iovec
	vec[0].Base = &first[0]
	vec[0].SetLen(len(first))
	m := 1
	for _, first := range rest {
		if len(first) > 0 {
			vec[m].Base = &first[0]
			vec[m].SetLen(len(first))
			m++
		}
	}
	msg := unix.Msghdr{Iov: &vec[0]}
	msg.SetIovlen(m)
	for {
		n, _, errno := syscall.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&msg)), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		if errno != syscall.EINTR {
			return max(int(n), 0) // -1 on failure
		}
	}
}

// IsWritableOrFailed reports whether a socket has failed or can accept output now.
func IsWritableOrFailed(fd int32) bool {
	poll := []unix.PollFd{{Fd: fd, Events: unix.POLLOUT}}
	n, err := unix.Poll(poll, 0)
	return n > 0 || err != nil && err != unix.EINTR
}

// Acceptor accepts from non-blocking listeners. It is not safe for concurrent use.
type Acceptor struct {
	Blocking bool
	peer     unix.RawSockaddrAny
}

// Accept accepts one connection. The new socket is closed on exec. It is non-blocking unless a.Blocking is set. It
// inherits options such as TCP_NODELAY from the listener.
func (a *Acceptor) Accept(listenerFD int32) (fd int32, peer netip.AddrPort, errno syscall.Errno) {
	size := uint32(unix.SizeofSockaddrAny)
	flags := uintptr(unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC)
	if a.Blocking {
		flags = unix.SOCK_CLOEXEC
	}
	n, _, errno := syscall.RawSyscall6(unix.SYS_ACCEPT4, uintptr(listenerFD),
		uintptr(unsafe.Pointer(&a.peer)), uintptr(unsafe.Pointer(&size)),
		flags, 0, 0)
	if errno != 0 {
		return -1, peer, errno
	}
	return int32(n), toAddrPort(&a.peer), 0
}

// PeerAddr returns the remote address of a socket. If the address has no port, as in a unix socket, it returns the zero
// value. It does not block.
func PeerAddr(fd int32) netip.AddrPort {
	return socketAddr(unix.SYS_GETPEERNAME, fd)
}

// LocalAddr returns the local address of a socket. If the address has no port, as in a unix socket, it returns the zero
// value.
func LocalAddr(fd int32) netip.AddrPort { return socketAddr(unix.SYS_GETSOCKNAME, fd) }

func socketAddr(syscallNumber uintptr, fd int32) netip.AddrPort {
	var sa unix.RawSockaddrAny
	size := uint32(unix.SizeofSockaddrAny)
	_, _, errno := syscall.RawSyscall(syscallNumber, uintptr(fd), uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&size)))
	if errno != 0 {
		return netip.AddrPort{}
	}
	return toAddrPort(&sa)
}

// toAddrPort converts an address from the kernel. If the address has no port, it returns the zero value.
func toAddrPort(sa *unix.RawSockaddrAny) netip.AddrPort {
	switch sa.Addr.Family {
	case unix.AF_INET:
		in := (*unix.RawSockaddrInet4)(unsafe.Pointer(sa))
		return netip.AddrPortFrom(netip.AddrFrom4(in.Addr), fromNetworkOrder(in.Port))
	case unix.AF_INET6:
		in := (*unix.RawSockaddrInet6)(unsafe.Pointer(sa))
		return netip.AddrPortFrom(netip.AddrFrom16(in.Addr), fromNetworkOrder(in.Port))
	}
	return netip.AddrPort{}
}

func fromNetworkOrder(port uint16) uint16 {
	b := (*[2]byte)(unsafe.Pointer(&port))
	return uint16(b[0])<<8 | uint16(b[1])
}

// DupConnDescriptor duplicates the descriptor of a net.Listener or net.Conn. The caller must close the duplicate.
func DupConnDescriptor(conn any) (int32, error) {
	own := -1
	err := withDescriptor(conn, func(fd int) (err error) {
		own, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	return int32(own), err
}

func withDescriptor(conn any, do func(fd int) error) error {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return fmt.Errorf("%T has no descriptor; expected a listener or a connection of package net, such as *net.TCPListener", conn)
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

// NewNetConnFromDup returns a net.Conn that uses a duplicate of fd. The caller must still close fd.
func NewNetConnFromDup(fd int32) (net.Conn, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(own), "")
	defer f.Close()
	return net.FileConn(f) // duplicates the descriptor
}

// CopyFDFromProcessTable copies a descriptor from the process's descriptor table to the private table of the calling
// thread. It returns the number that the descriptor has in the private table.
func CopyFDFromProcessTable(fd int32) (int32, error) {
	process, err := unix.PidfdOpen(unix.Getpid(), 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(process)
	own, err := unix.PidfdGetfd(process, int(fd), 0)
	return int32(own), err
}

// TakeSocketError returns and clears the pending error of a socket. It returns 0 if there is no error.
func TakeSocketError(fd int32) syscall.Errno {
	e, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return unix.EBADF
	}
	return syscall.Errno(e)
}

func SetBlocking(fd int32) syscall.Errno {
	flags, _, errno := syscall.RawSyscall(unix.SYS_FCNTL, uintptr(fd), unix.F_GETFL, 0)
	if errno == 0 {
		_, _, errno = syscall.RawSyscall(unix.SYS_FCNTL, uintptr(fd), unix.F_SETFL, flags&^unix.O_NONBLOCK)
	}
	return errno
}

func ShutdownWrite(fd int32) error { return unix.Shutdown(int(fd), unix.SHUT_WR) }

// Shutdown shuts down both directions of a connection, or cancels connecting. Blocked calls on the socket return.
func Shutdown(fd int32) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) } // it fails only if the connection has ended

// ResetConnKeepingFD ends a TCP connection with a reset, or cancels connecting. Blocked calls on the socket return. If
// the socket does not support resets, for example because it is a unix socket, supported is false.
func ResetConnKeepingFD(fd int32) (supported bool) {
	none := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	_, _, errno := syscall.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none))
	return errno == 0
}

// SetResetOnClose makes the kernel send a reset when the socket is closed or the process is killed.
func SetResetOnClose(fd int32) error { return setResetOnClose(uintptr(fd)) }

// StopListening makes a listening socket stop listening. The socket stops in all processes that share it.
func StopListening(listenerFD int32) { _ = unix.Shutdown(int(listenerFD), unix.SHUT_RD) } // it fails only if the listener has stopped

// Close closes descriptors. It can block only on a blocking socket with SO_LINGER.
func Close(fds ...int32) {
	for _, fd := range fds {
		_, _, _ = syscall.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0)
	}
}

// SendFileOnBlockingSocket is like SendFile, but for a blocking socket. It makes the socket non-blocking during the
// call, so no other goroutine may use the socket during the call.
func SendFileOnBlockingSocket(socketFD int32, f *os.File, offset int64, n int) (int, syscall.Errno) {
	flags, _, errno := syscall.RawSyscall(unix.SYS_FCNTL, uintptr(socketFD), unix.F_GETFL, 0)
	if errno == 0 {
		_, _, errno = syscall.RawSyscall(unix.SYS_FCNTL, uintptr(socketFD), unix.F_SETFL, flags|unix.O_NONBLOCK)
	}
	if errno != 0 {
		return 0, errno
	}
	n, errno = SendFile(socketFD, f, offset, n)
	_, _, _ = syscall.RawSyscall(unix.SYS_FCNTL, uintptr(socketFD), unix.F_SETFL, flags) // restore
	return n, errno
}

// SendFile sends up to n bytes of f, starting at offset, to a non-blocking socket. At the end of the file, it returns 0
// and no error. It may wait for the disk.
func SendFile(socketFD int32, f *os.File, offset int64, n int) (int, syscall.Errno) {
	from := int(f.Fd())
	for {
		sent, err := unix.Sendfile(int(socketFD), from, &offset, n)
		switch errno, _ := err.(syscall.Errno); errno {
		case syscall.EINTR:
		case 0:
			return sent, 0
		default:
			return 0, errno
		}
	}
}

// SplicePipe moves bytes between sockets in the kernel (splice(2)) without blocking. It is not safe for concurrent use.
type SplicePipe struct {
	writeFD, readFD int32
	isOpen          bool
}

// Open creates the pipe if it is not open yet. It returns false if the pipe cannot be created.
func (p *SplicePipe) Open() (isOpen bool) {
	if p.isOpen {
		return true
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		return false // descriptors may be available later
	}
	p.writeFD, p.readFD, p.isOpen = int32(fds[1]), int32(fds[0]), true
	return true
}

// Close closes the pipe and discards its content. The pipe may be opened again.
func (p *SplicePipe) Close() {
	if p.isOpen {
		Close(p.writeFD)
		Close(p.readFD)
		p.isOpen = false
	}
}

// SpliceFromSocket moves up to n bytes of a socket's input into the pipe. At the end of the input, it returns 0 and no
// error. EINVAL means that the socket does not support splice.
func (p *SplicePipe) SpliceFromSocket(socketFD int32, n int) (int, syscall.Errno) {
	return splice(socketFD, p.writeFD, n)
}

func (p *SplicePipe) SpliceToSocket(socketFD int32, n int) (int, syscall.Errno) {
	return splice(p.readFD, socketFD, n)
}

func splice(fromFD, toFD int32, n int) (int, syscall.Errno) {
	for {
		moved, _, errno := syscall.RawSyscall6(unix.SYS_SPLICE, uintptr(fromFD), 0, uintptr(toFD), 0, uintptr(n), unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		switch errno {
		case 0:
			return int(moved), 0
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}

func (p *SplicePipe) Read(buf []byte) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall(unix.SYS_READ, uintptr(p.readFD), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)))
		if errno != syscall.EINTR {
			return int(n), errno
		}
	}
}
