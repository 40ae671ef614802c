package sock

import (
	"fmt"
	"os"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file is how descriptors go from one process to another, over a unix socket that keeps
// messages apart: a message and its descriptors arrive together or not at all.

// MaxRights is the most descriptors of one message: the kernel's SCM_MAX_FD is 253.
const MaxRights = 200

// MaxRightsMessage is the most bytes of one message.
const MaxRightsMessage = 64 << 10

// RightsPair makes two ends of such a socket. They are closed on exec, and do not block.
func RightsPair() (pair [2]*os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return pair, fmt.Errorf("a socket for descriptors: %w", err)
	}
	for i, fd := range fds {
		// Some messages are to fit; an error leaves the kernel's default, which is room for three.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4*MaxRightsMessage)
		pair[i] = os.NewFile(uintptr(fd), "descriptors")
	}
	return pair, nil
}

// SendRights sends a message, which must not be empty, with descriptors, which stay the
// caller's. It does not block: EAGAIN, and ETOOMANYREFS for too many descriptors under way,
// mean that it may fit later.
func SendRights(fd int32, p []byte, fds []int) syscall.Errno {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	for {
		_, err := unix.SendmsgN(int(fd), p, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if errno, _ := err.(syscall.Errno); errno != syscall.EINTR {
			return errno
		}
	}
}

// SendListeners sends descriptors, which stay the caller's, in as many messages as it takes, each of
// a word.
func SendListeners(to int32, word string, fds []int) error {
	for some := range slices.Chunk(fds, MaxRights) {
		if errno := SendRights(to, []byte(word), some); errno != 0 {
			return fmt.Errorf("listeners can't be handed over: %w", errno)
		}
	}
	return nil
}

// ReceiveRights receives a message, and its descriptors, closed on exec, into the table of
// the calling thread. It does not block. No bytes and no error are the other side's end.
// Where the table has no room for all, it says EMFILE, and those that have come are closed.
func ReceiveRights(fd int32, p []byte) (n int, fds []int32, errno syscall.Errno) {
	oob := make([]byte, unix.CmsgSpace(4*MaxRights))
	var size, flags int
	for {
		var err error
		n, size, flags, _, err = unix.Recvmsg(int(fd), p, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		errno, _ = err.(syscall.Errno)
		// A peer that has closed without reading all resets the socket, which is said once, and
		// before what it has sent.
		if errno != syscall.EINTR && errno != syscall.ECONNRESET {
			break
		}
	}
	if errno != 0 {
		return 0, nil, errno
	}
	for oob = oob[:size]; len(oob) >= unix.SizeofCmsghdr; {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&oob[0]))
		length := int(h.Len)
		if length < unix.SizeofCmsghdr || length > len(oob) {
			break
		}
		if h.Level == unix.SOL_SOCKET && h.Type == unix.SCM_RIGHTS {
			for data := oob[unix.CmsgLen(0):length]; len(data) >= 4; data = data[4:] {
				fds = append(fds, *(*int32)(unsafe.Pointer(&data[0])))
			}
		}
		oob = oob[min(unix.CmsgSpace(length-unix.CmsgLen(0)), len(oob)):]
	}
	if flags&(unix.MSG_CTRUNC|unix.MSG_TRUNC) != 0 {
		Close(fds...)
		return 0, nil, syscall.EMFILE
	}
	return n, fds, 0
}

// Duplicate makes another descriptor of one.
func Duplicate(fd int32) (int32, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	return int32(own), err
}

// MemoryFile makes a file in memory that has these bytes.
func MemoryFile(p []byte) (fd int32, err error) {
	own, err := unix.MemfdCreate("records", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("memfd_create: %w", err)
	}
	for len(p) > 0 && err == nil {
		var n int
		n, err = unix.Write(own, p)
		p = p[max(n, 0):]
	}
	if err != nil {
		unix.Close(own)
		return -1, fmt.Errorf("a file in memory: %w", err)
	}
	return int32(own), nil
}

// ReadMemoryFile reads a file of at most so many bytes, and closes it.
func ReadMemoryFile(fd int32, most int) ([]byte, error) {
	defer Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(int(fd), &st); err != nil {
		return nil, err
	}
	if st.Size > int64(most) {
		return nil, fmt.Errorf("a file in memory has %d bytes; expected at most %d", st.Size, most)
	}
	p := make([]byte, st.Size)
	for at := 0; at < len(p); {
		n, err := unix.Pread(int(fd), p[at:], int64(at))
		if err != nil || n == 0 {
			return nil, fmt.Errorf("a file in memory: read %d of %d bytes: %w", at, len(p), err)
		}
		at += n
	}
	return p, nil
}
