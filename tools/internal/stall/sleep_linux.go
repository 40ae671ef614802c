package stall

import (
	"time"

	"golang.org/x/sys/unix"
)

// nanosleep sleeps for d or until a signal arrives, more precisely than Go's timers.
func nanosleep(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&t, nil) // the only error is EINTR
}
