package supervisor

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/upgrade"
)

const (
	countersFD = 3 + iota
	controlFD
	linkFD
	firstListenerFD
)

func (w *Worker) validateAndInheritDescriptors() error {
	end := firstListenerFD
	for _, n := range w.Sockets {
		end += n
	}
	for fd := firstListenerFD; fd < end; fd++ {
		if on, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil || on != 1 {
			return fmt.Errorf("%s is set, but descriptor %d is not a listener (%v); unset it", workerEnv, fd, err)
		}
	}
	if family, err := unix.GetsockoptInt(controlFD, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil || family != unix.AF_UNIX {
		return fmt.Errorf("%s is set, but descriptor %d is not a control socket (%v); unset it", workerEnv, controlFD, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(countersFD, &st); err != nil || st.Size != int64(sharedMemorySize(w.Processes)) {
		return fmt.Errorf("descriptor %d contains %d bytes of counters (%v); this program expects %d; "+
			"if the program was replaced while its supervisor ran, restart the supervisor", countersFD, st.Size, err, sharedMemorySize(w.Processes))
	}
	link, err := upgrade.InheritOrderConn(linkFD)
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
	counters, page, err := mapSharedMemory(memory, w.Processes)
	if err != nil {
		return err
	}
	w.page = page
	w.block = counters.workerBlock(w.Index) // mapped until the process ends
	if w.socket, err = toUnixConnClosingFile(os.NewFile(controlFD, "control socket")); err != nil {
		return err
	}
	w.out = newUnstartedOutbox(w.socket)
	return nil
}

func raiseSIGTERM() { _ = syscall.Kill(syscall.Getpid(), syscall.SIGTERM) }
