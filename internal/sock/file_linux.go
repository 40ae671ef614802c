package sock

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

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
