package sock

import (
	"time"

	"golang.org/x/sys/unix"
)

// Sleep pauses for about d, or less when a signal comes. It is for short times:
// those of package time end up to a millisecond late in a program that has nothing
// else to do.
func Sleep(d time.Duration) {
	ts := unix.NsecToTimespec(d.Nanoseconds())
	_ = unix.Nanosleep(&ts, nil)
}
