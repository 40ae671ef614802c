package enginetest

import (
	"syscall"
	"time"
)

func cpuTime(b *testEnv) time.Duration {
	var u syscall.Rusage
	b.requireNoError(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
