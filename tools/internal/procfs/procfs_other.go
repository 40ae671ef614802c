//go:build !linux

package procfs

import "time"

func sameTable(int, int) (bool, error) { return false, ErrNotAvailable }

func writable(string) bool { return false }

func tasksIn(string) (user uint32, tasks int, err error) { return 0, 0, ErrNotAvailable }

// ReadRlimits needs Linux.
func ReadRlimits(int) (Rlimits, error) { return Rlimits{}, ErrNotAvailable }

// ReadPSS needs Linux.
func ReadPSS(int) (rss, pss int64, err error) { return 0, 0, ErrNotAvailable }

// CPUClock needs Linux.
func CPUClock(int) (time.Duration, error) { return 0, ErrNotAvailable }

// InNetwork needs Linux.
func InNetwork(int, func()) error { return ErrNotAvailable }
