package procfs

import "fmt"

// NetworkFile is the file by which the network namespace of a process is entered,
// see setns(2).
func NetworkFile(pid int) string { return fmt.Sprintf("/proc/%d/ns/net", pid) }

// SameNetwork says whether the calling thread is in the network namespace of a
// process. It takes the right to trace it.
func SameNetwork(pid int) (bool, error) {
	theirs, err := readLink(NetworkFile(pid))
	if err != nil {
		return false, err
	}
	own, err := readLink("/proc/thread-self/ns/net")
	return own == theirs, err
}
