package goroutine

import (
	"encoding/binary"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// pollerBarrier makes Go's poller check the network: it waits there for an event of its own, behind all earlier
// events. It is not safe for concurrent use.
type pollerBarrier struct {
	event             *os.File // an eventfd
	raw               syscall.RawConn
	signalOrClearFunc func(fd uintptr) bool
	signalled         bool
}

func (v *pollerBarrier) open() error {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	v.event, v.signalOrClearFunc = os.NewFile(uintptr(fd), "eventfd"), v.signalOrClear
	if v.raw, err = v.event.SyscallConn(); err != nil {
		v.event.Close()
	}
	return err
}

// waitForPollerPass returns when the events that the network has now have been reported.
func (v *pollerBarrier) waitForPollerPass() {
	v.signalled = false
	_ = v.raw.Read(v.signalOrClearFunc) // fails when the barrier is closed
}

// signalOrClear signals the event in its first call, when the poller waits for it, and clears it when it has
// been reported.
func (v *pollerBarrier) signalOrClear(eventFD uintptr) (done bool) {
	word := binary.NativeEndian.AppendUint64(nil, 1)
	if done = v.signalled; done {
		_, _ = unix.Read(int(eventFD), word)
	} else {
		_, err := unix.Write(int(eventFD), word)
		v.signalled, done = true, err != nil
	}
	return done
}

func (v *pollerBarrier) close() { v.event.Close() }
