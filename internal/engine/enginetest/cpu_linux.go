package enginetest

import (
	"syscall"
	"time"
)

// cpuTime returns the CPU time used by this process.
func cpuTime(b *testEnv) time.Duration {
	var u syscall.Rusage
	b.requireNoError(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
