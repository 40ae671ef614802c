//go:build !linux

package procfs

import "time"

func sharesDescriptorTable(int, int) (bool, error) { return false, ErrNotAvailable }

func isWritable(string) bool { return false }

func threadCountAndOwner(string) (user uint32, tasks int, err error) { return 0, 0, ErrNotAvailable }

// ReadRlimits needs Linux.
func ReadRlimits(int) (Rlimits, error) { return Rlimits{}, ErrNotAvailable }

// ReadExactRSSAndPSS needs Linux.
func ReadExactRSSAndPSS(int) (rss, pss int64, err error) { return 0, 0, ErrNotAvailable }

// ReadCPUTimeOfProcess needs Linux.
func ReadCPUTimeOfProcess(int) (time.Duration, error) { return 0, ErrNotAvailable }

// CallInNetworkNamespace needs Linux.
func CallInNetworkNamespace(int, func()) error { return ErrNotAvailable }
