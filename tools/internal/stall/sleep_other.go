//go:build !linux

package stall

import "time"

func sleep(d time.Duration) { time.Sleep(d) }
