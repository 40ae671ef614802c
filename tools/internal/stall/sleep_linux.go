package stall

import (
	"time"

	"golang.org/x/sys/unix"
)

// nanosleep sleeps for d or until a signal arrives. It blocks a thread, because in an idle process Go's timers have a
// resolution of only milliseconds.
func nanosleep(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&t, nil) // the only error is EINTR
}
