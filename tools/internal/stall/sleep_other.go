//go:build !linux

package stall

import "time"

func nanosleep(d time.Duration) { time.Sleep(d) }
