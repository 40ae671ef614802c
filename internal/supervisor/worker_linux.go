package supervisor

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// The descriptors that a worker inherits.
const (
	firstListenerFD = 3 + iota
	countersFD
	controlFD
	moreListenersFD
)

// listenerFD is the descriptor of a listener, by its number.
func listenerFD(n int) int {
	if n == 0 {
		return firstListenerFD
	}
	return moreListenersFD + n - 1
}

// inherit takes over the inherited descriptors, after it has checked that they are
// what they should be: a program that finds the variable by accident has others there.
func (w *Worker) inherit() error {
	for i := range w.Addrs {
		fd := listenerFD(i)
		if on, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil || on != 1 {
			return fmt.Errorf("%s is set, but descriptor %d is no listener (%v); unset it", environment, fd, err)
		}
	}
	if family, err := unix.GetsockoptInt(controlFD, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil || family != unix.AF_UNIX {
		return fmt.Errorf("%s is set, but descriptor %d is no control socket (%v); unset it", environment, controlFD, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(countersFD, &st); err != nil || st.Size != int64(w.Processes*stride) {
		return fmt.Errorf("descriptor %d holds %d bytes of counters (%v), and this program expects %d; "+
			"has the program been replaced while its supervisor ran? Start that again", countersFD, st.Size, err, w.Processes*stride)
	}
	for fd := firstListenerFD; fd < listenerFD(len(w.Addrs)); fd++ {
		syscall.CloseOnExec(fd)
	}
	for i := range w.Addrs {
		w.listeners = append(w.listeners, os.NewFile(uintptr(listenerFD(i)), "listener"))
	}
	memory := os.NewFile(countersFD, "counters")
	defer memory.Close()
	counters, err := mapCounters(memory, w.Processes)
	if err != nil {
		return err
	}
	w.block = counters.block(w.Index) // mapped as long as the process lives
	if w.socket, err = unixConn(os.NewFile(controlFD, "control socket")); err != nil {
		return err
	}
	w.out = newOutbox(w.socket)
	return nil
}

// raise sends this process a SIGTERM. That can't fail.
func raise() { _ = syscall.Kill(syscall.Getpid(), syscall.SIGTERM) }
