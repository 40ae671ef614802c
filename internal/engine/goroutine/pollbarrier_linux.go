package goroutine

import (
	"encoding/binary"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// pollerBarrier waits until Go's network poller has reported all pending events: it adds an event, which the poller
// reports last. It is not safe for concurrent use.
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

// waitForPollerPass returns when the poller has reported the events that are pending now.
func (v *pollerBarrier) waitForPollerPass() {
	v.signalled = false
	_ = v.raw.Read(v.signalOrClearFunc) // fails when the barrier is closed
}

// signalOrClear is called twice by the poller. The first call, before the poller waits, signals the eventfd. The second
// call, after the poller has reported the event, clears the eventfd.
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
