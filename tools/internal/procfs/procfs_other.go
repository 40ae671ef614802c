//go:build !linux

package procfs

import "time"

func sharesTable(int, int) (bool, error) { return false, ErrNotAvailable }

func isWritable(string) bool { return false }

func countTasksIn(string) (user uint32, tasks int, err error) { return 0, 0, ErrNotAvailable }

// ReadRlimits needs Linux.
func ReadRlimits(int) (Rlimits, error) { return Rlimits{}, ErrNotAvailable }

// ReadPSS needs Linux.
func ReadPSS(int) (rss, pss int64, err error) { return 0, 0, ErrNotAvailable }

// CPUClock needs Linux.
func CPUClock(int) (time.Duration, error) { return 0, ErrNotAvailable }

// CallInNetwork needs Linux.
func CallInNetwork(int, func()) error { return ErrNotAvailable }
