//go:build unix

package sample

import (
	"syscall"
	"time"
)

// OwnCPUTime returns the processor time that this process has used.
func OwnCPUTime() Process {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // never fails
	return Process{User: time.Duration(u.Utime.Nano()), System: time.Duration(u.Stime.Nano())}
}
