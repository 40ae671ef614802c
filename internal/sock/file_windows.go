package sock

import (
	"os"
	"syscall"
)

// DupFile makes a handle of one's own of a file. The caller closes it.
func DupFile(f *os.File) (own *os.File, err error) {
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
