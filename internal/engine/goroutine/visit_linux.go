package goroutine

import (
	"os"
	"syscall"
)

// visitor sees to it that Go's poller looks at the network: it waits there for an
// event of its own, behind all that have come before. The zero value is ready; it is
// for one goroutine at a time.
type visitor struct {
	in, out *os.File
	wait    syscall.RawConn
	step    func(fd uintptr) bool
	failed  bool
	rang    bool
}

// visit returns when the events that the network has now have been reported. Where
// there are no descriptors for it, it does nothing.
func (v *visitor) visit() {
	if v.in == nil && !v.open() {
		return
	}
	v.rang = false
	_ = v.wait.Read(v.step) // it fails when it is closed
}

// open makes a pipe at the first visit: most groups have none.
func (v *visitor) open() bool {
	if v.failed {
		return false
	}
	var err error
	if v.in, v.out, err = os.Pipe(); err == nil {
		v.wait, err = v.in.SyscallConn()
	}
	v.step, v.failed = v.look, err != nil
	return err == nil
}

// look rings when the poller has been told that somebody waits, and takes the ring
// back when it has reported it.
func (v *visitor) look(fd uintptr) bool {
	var one [1]byte
	if !v.rang {
		_, err := v.out.Write(one[:])
		v.rang = err == nil
		return err != nil
	}
	_, _ = syscall.Read(int(fd), one[:])
	return true
}

// close is for when nobody visits any more.
func (v *visitor) close() {
	if v.in != nil {
		v.in.Close()
		v.out.Close()
	}
}
