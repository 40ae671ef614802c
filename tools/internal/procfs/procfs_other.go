//go:build !linux

package procfs

import "time"

func sharesDescriptorTable(int, int) (bool, error) { return false, ErrNotAvailable }

func isWritable(string) bool { return false }

func threadCountAndOwner(string) (user uint32, tasks int, err error) { return 0, 0, ErrNotAvailable }

// ReadRlimits returns ErrNotAvailable.
func ReadRlimits(int) (Rlimits, error) { return Rlimits{}, ErrNotAvailable }

// ReadExactRSSAndPSS returns ErrNotAvailable.
func ReadExactRSSAndPSS(int) (rss, pss int64, err error) { return 0, 0, ErrNotAvailable }

// ReadCPUTimeOfProcess returns ErrNotAvailable.
func ReadCPUTimeOfProcess(int) (time.Duration, error) { return 0, ErrNotAvailable }

// CallInNetworkNamespace returns ErrNotAvailable.
func CallInNetworkNamespace(int, func()) error { return ErrNotAvailable }
