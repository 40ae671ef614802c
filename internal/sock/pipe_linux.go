package sock

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

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
