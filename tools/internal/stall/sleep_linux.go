package stall

import (
	"time"

	"golang.org/x/sys/unix"
)

// sleep sleeps for a time, or until a signal. It takes a thread, because Go's own
// timers count in milliseconds where the process has nothing else to do.
func sleep(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&t, nil) // it can only say that a signal has come
}
