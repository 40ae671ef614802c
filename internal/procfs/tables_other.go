//go:build !linux

package procfs

func sameTable(int, int) (bool, error) { return false, ErrNotAvailable }
