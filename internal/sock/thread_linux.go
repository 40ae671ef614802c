package sock

import (
	"time"

	"golang.org/x/sys/unix"
)

// SharpTimers has the waits of the calling thread, to which the goroutine must be
// locked, end within a microsecond of their time, not within the 50 that the kernel
// takes to end several at once; undo takes it back.
func SharpTimers() (undo func()) {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // an error means that they are as they were
	return func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) }
}

// ThreadWork is what a thread has done.
type ThreadWork struct {
	// CPU is the processor time that it has used.
	CPU time.Duration
	// Sleeps is how often it has given up its processor to wait for
	// something; when it was taken from it does not count.
	Sleeps int64
}

// Worked is what the calling thread, to which the goroutine must be locked, has
// done so far.
func Worked() ThreadWork {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &u) // a valid call does not fail
	return ThreadWork{CPU: time.Duration(u.Utime.Nano() + u.Stime.Nano()), Sleeps: int64(u.Nvcsw)}
}

// Since is what it has done since an earlier time.
func (w ThreadWork) Since(earlier ThreadWork) ThreadWork {
	return ThreadWork{CPU: w.CPU - earlier.CPU, Sleeps: w.Sleeps - earlier.Sleeps}
}
