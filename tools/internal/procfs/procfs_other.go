//go:build !linux

package procfs

func sameTable(int, int) (bool, error) { return false, ErrNotAvailable }

func writable(string) bool { return false }

func tasksIn(string) (user uint32, tasks int, err error) { return 0, 0, ErrNotAvailable }

// ReadRlimits needs Linux.
func ReadRlimits(int) (Rlimits, error) { return Rlimits{}, ErrNotAvailable }
