package supervisor

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// The descriptors that a worker inherits.
const (
	listenerFD = 3 + iota
	memoryFD
	lineFD
	moreFD // further listeners, from here
)

// listenerAt is the descriptor of a listener, by its number.
func listenerAt(n int) int {
	if n == 0 {
		return listenerFD
	}
	return moreFD + n - 1
}

// adopt takes over the inherited descriptors, when they are what they should
// be: a program that finds the variable by accident has others there.
func (w *Worker) adopt() error {
	for i := range w.where {
		fd := listenerAt(i)
		if on, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil || on != 1 {
			return fmt.Errorf("%s is set, but descriptor %d is no listener (%v); unset it", environment, fd, err)
		}
	}
	if family, err := unix.GetsockoptInt(lineFD, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil || family != unix.AF_UNIX {
		return fmt.Errorf("%s is set, but descriptor %d is no life-line (%v); unset it", environment, lineFD, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(memoryFD, &st); err != nil || st.Size != int64(boardSize(w.of)) {
		return fmt.Errorf("descriptor %d holds %d bytes of counters (%v), and this program expects %d; "+
			"has the program been replaced while its supervisor ran? Start that again", memoryFD, st.Size, err, boardSize(w.of))
	}
	for fd := range listenerAt(len(w.where)) {
		if fd >= listenerFD {
			syscall.CloseOnExec(fd)
		}
	}
	for i := range w.where {
		w.listeners = append(w.listeners, os.NewFile(uintptr(listenerAt(i)), "listener"))
	}
	memory := os.NewFile(memoryFD, "counters")
	defer memory.Close()
	b, err := mapBoard(memory, w.of)
	if err != nil {
		return err
	}
	w.block = b.block(w.Index) // mapped as long as the process lives
	if w.line, err = unixConn(os.NewFile(lineFD, "life-line")); err != nil {
		return err
	}
	w.out = newOutbox(w.line)
	return nil
}

// raise sends this process a SIGTERM. That can't fail.
func raise() { _ = syscall.Kill(syscall.Getpid(), syscall.SIGTERM) }
