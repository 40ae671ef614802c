package pool

import (
	"syscall"
	"time"
)

// processorTime is the processor time that this process has used, 0 if the system does
// not tell.
func processorTime() time.Duration {
	var used syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &used) != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
