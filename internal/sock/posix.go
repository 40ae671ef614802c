//go:build !windows

package sock

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

func setSocketOption(fd uintptr, name, value int) error {
	return syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, name, value)
}

func setResetOnClose(fd uintptr) error {
	return syscall.SetsockoptLinger(int(fd), syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1})
}

// DupFile duplicates the descriptor of f. The caller must close dup.
func DupFile(f *os.File) (dup *os.File, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	if e := raw.Control(func(from uintptr) { fd, err = unix.FcntlInt(from, syscall.F_DUPFD_CLOEXEC, 0) }); e != nil {
		return nil, e
	}
	if err != nil {
		return nil, &os.PathError{Op: "dup", Path: f.Name(), Err: err}
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
