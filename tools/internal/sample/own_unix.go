//go:build unix

package sample

import (
	"syscall"
	"time"
)

// OwnCPU returns the processor time that this process has used.
func OwnCPU() (user, system time.Duration) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, 0
	}
	return time.Duration(u.Utime.Nano()), time.Duration(u.Stime.Nano())
}
