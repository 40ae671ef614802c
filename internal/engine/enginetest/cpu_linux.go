package enginetest

import (
	"syscall"
	"time"
)

// cpuTime is the processor time that this process has used.
func cpuTime(b *bench) time.Duration {
	var u syscall.Rusage
	b.must(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
