package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// usage is the most memory that this process has had, in bytes, and the CPU time
// that it has taken.
func usage() (peak int64, cpu time.Duration, err error) {
	var u unix.Rusage
	err = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return int64(u.Maxrss) << 10, time.Duration(u.Utime.Nano() + u.Stime.Nano()), err
}
