package supervisor

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/upgrade"
)

// The descriptors that a worker inherits.
const (
	countersFD = 3 + iota
	controlFD
	linkFD
	firstListenerFD
)

// inherit takes over the inherited descriptors, after it has checked that they are
// what they should be: a program that finds the variable by accident has others there.
func (w *Worker) inherit() error {
	end := firstListenerFD
	for _, n := range w.Sockets {
		end += n
	}
	for fd := firstListenerFD; fd < end; fd++ {
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
	link, err := upgrade.InheritLink(linkFD)
	if err != nil {
		return err
	}
	w.link = link
	for fd := countersFD; fd < end; fd++ {
		syscall.CloseOnExec(fd)
	}
	fd := firstListenerFD
	for _, n := range w.Sockets {
		var files []*os.File
		for range n {
			files = append(files, os.NewFile(uintptr(fd), "listener"))
			fd++
		}
		w.listeners = append(w.listeners, files)
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
