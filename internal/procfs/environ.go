package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
)

// HasEnv reports whether a process was started with an entry, such as "NAME=value", in
// its environment; what it has changed since is not to be seen. A process that has ended,
// or that this one may not look at, has none.
func HasEnv(pid int, entry string) (bool, error) {
	b, err := readFile(fmt.Sprintf("/proc/%d/environ", pid))
	if Gone(err) || errors.Is(err, fs.ErrPermission) {
		return false, nil
	}
	return err == nil && hasEntry(b, entry), err
}

// WithEnv returns the processes that were started with an entry in their environment, in
// ascending order. Processes that this one may not look at are passed over.
func WithEnv(entry string) ([]int, error) {
	var pids []int
	err := eachName("/proc", func(name string) error {
		pid, err := strconv.Atoi(name)
		if err != nil {
			return nil // not a process
		}
		has, err := HasEnv(pid, entry)
		if has {
			pids = append(pids, pid)
		}
		return err
	})
	slices.Sort(pids)
	return pids, err
}

// hasEntry looks for an entry in /proc/PID/environ, where each ends with a zero byte.
func hasEntry(b []byte, entry string) bool {
	for one := range bytes.SplitSeq(b, []byte{0}) {
		if string(one) == entry {
			return true
		}
	}
	return false
}
