//go:build !linux

package procfs

func eachLine(string, int, func(line string) (more bool)) error { return ErrNotAvailable }

func fileSize(string) (int64, error) { return 0, ErrNotAvailable }

func writable(string) bool { return false }

func tasksIn(string) (user uint32, tasks int, err error) { return 0, 0, ErrNotAvailable }
