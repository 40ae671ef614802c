package goroutine

import (
	"encoding/binary"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// pollerBarrier waits until Go's network poller has reported all pending events. It is not safe for concurrent use.
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
	v.event, v.signalOrClearFunc = os.NewFile(uintptr(fd), "eventfd"), v.signalThenClear
	if v.raw, err = v.event.SyscallConn(); err != nil {
		v.event.Close()
	}
	return err
}

// waitForPollerPass waits until Go's network poller has reported all events that were pending at the call.
func (v *pollerBarrier) waitForPollerPass() {
	v.signalled = false
	_ = v.raw.Read(v.signalOrClearFunc) // fails when the barrier is closed
}

// signalThenClear signals the eventfd on the first call and clears it on the second call.
func (v *pollerBarrier) signalThenClear(eventFD uintptr) (done bool) {
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
