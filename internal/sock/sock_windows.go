package sock

import (
	"os"
	"syscall"
)

func setSocketOption(fd uintptr, name, value int) error {
	return syscall.SetsockoptInt(syscall.Handle(fd), syscall.SOL_SOCKET, name, value)
}

func setResetOnClose(fd uintptr) error {
	return syscall.SetsockoptLinger(syscall.Handle(fd), syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1})
}

// DupFile duplicates the handle of f. The caller must close dup.
func DupFile(f *os.File) (dup *os.File, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	process, err := syscall.GetCurrentProcess()
	if err != nil {
		return nil, err
	}
	var h syscall.Handle
	if e := raw.Control(func(from uintptr) {
		err = syscall.DuplicateHandle(process, syscall.Handle(from), process, &h, 0, false, syscall.DUPLICATE_SAME_ACCESS)
	}); e != nil {
		return nil, e
	}
	if err != nil {
		return nil, &os.PathError{Op: "dup", Path: f.Name(), Err: err}
	}
	return os.NewFile(uintptr(h), f.Name()), nil
}
