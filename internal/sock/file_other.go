//go:build !windows

package sock

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// DupFile makes a descriptor of one's own of a file. The caller closes it.
func DupFile(f *os.File) (own *os.File, err error) {
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
