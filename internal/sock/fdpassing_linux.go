package sock

import (
	"fmt"
	"os"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file passes descriptors between processes over a unix socket that preserves message boundaries: a message and
// its descriptors arrive together or not at all.

// MaxFDsPerMessage is the maximum number of descriptors that one message may contain.
const MaxFDsPerMessage = 200

const MaxFDMessageSize = 64 << 10

// NewFDSocketpair creates two connected, non-blocking unix sockets for passing descriptors. Child processes do not
// inherit the sockets unless they are passed explicitly.
func NewFDSocketpair() (pair [2]*os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return pair, fmt.Errorf("create a socket for descriptors: %w", err)
	}
	for i, fd := range fds {
		// Make space for several messages. If this fails, the kernel's default fits three.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4*MaxFDMessageSize)
		pair[i] = os.NewFile(uintptr(fd), "descriptors")
	}
	return pair, nil
}

// SendFDs sends a message with descriptors. It does not block. The message must not be empty. The caller must still
// close the descriptors. If SendFDs returns EAGAIN or ETOOMANYREFS, a later attempt may succeed.
func SendFDs(socketFD int32, message []byte, fds []int) syscall.Errno {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	for {
		_, err := unix.SendmsgN(int(socketFD), message, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if errno, _ := err.(syscall.Errno); errno != syscall.EINTR {
			return errno
		}
	}
}

// SendFDsInChunks sends descriptors in as many messages as needed. Each message has the given text. The caller must
// still close the descriptors.
func SendFDsInChunks(socketFD int32, message string, fds []int) error {
	for some := range slices.Chunk(fds, MaxFDsPerMessage) {
		if errno := SendFDs(socketFD, []byte(message), some); errno != 0 {
			return fmt.Errorf("cannot send descriptors: %w", errno)
		}
	}
	return nil
}

// ReceiveFDs receives a message into buf, and the descriptors of the message into the calling thread's descriptor
// table. It does not block. The descriptors are closed on exec.
//
// If n and errno are 0, the peer has closed the socket. If the descriptor table is full or the message does not fit
// into buf, ReceiveFDs closes the received descriptors and returns EMFILE.
func ReceiveFDs(socketFD int32, buf []byte) (n int, fds []int32, errno syscall.Errno) {
	oob := make([]byte, unix.CmsgSpace(4*MaxFDsPerMessage))
	var size, flags int
	for {
		var err error
		n, size, flags, _, err = unix.Recvmsg(int(socketFD), buf, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		errno, _ = err.(syscall.Errno)
		// If a peer closes with unread input, it resets the socket. The kernel reports the reset once, before the data
		// that the peer has sent.
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

func DupFD(fd int32) (int32, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	return int32(own), err
}

// WriteToNewMemoryFile returns a memory file (memfd_create) with the given content. The file offset is at the end.
func WriteToNewMemoryFile(content []byte) (fd int32, err error) {
	own, err := unix.MemfdCreate("records", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("memfd_create: %w", err)
	}
	for len(content) > 0 && err == nil {
		var n int
		n, err = unix.Write(own, content)
		content = content[max(n, 0):]
	}
	if err != nil {
		unix.Close(own)
		return -1, fmt.Errorf("write a memory file: %w", err)
	}
	return int32(own), nil
}

func ReadAndCloseMemoryFile(fd int32, maxSize int) ([]byte, error) {
	defer Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(int(fd), &st); err != nil {
		return nil, err
	}
	if st.Size > int64(maxSize) {
		return nil, fmt.Errorf("memory file has %d bytes; expected at most %d", st.Size, maxSize)
	}
	p := make([]byte, st.Size)
	for at := 0; at < len(p); {
		n, err := unix.Pread(int(fd), p[at:], int64(at))
		if err != nil || n == 0 {
			return nil, fmt.Errorf("memory file: read %d of %d bytes: %w", at, len(p), err)
		}
		at += n
	}
	return p, nil
}
