//go:build !linux

package main

import (
	"errors"
	"time"
)

// usage is the most memory that this process has had, in bytes, and the CPU time
// that it has taken.
func usage() (peak int64, cpu time.Duration, err error) {
	return 0, 0, errors.New("the peak of memory is only known on Linux")
}
