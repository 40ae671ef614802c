package procfs

import "fmt"

// CountDescriptors counts the open descriptors of a process as ReadDescriptors
// does, but without looking at them: since Linux 6.2 the size of the directory is
// their number, which the kernel counts in some microseconds however many they are;
// cheap is true then. Before, each name is read.
func CountDescriptors(pid int) (n int, cheap bool, err error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	size, err := fileSize(dir)
	if err != nil || size > 0 {
		return int(size), true, err
	}
	err = eachName(dir, func(string) error {
		if n == maxDescriptors {
			return fmt.Errorf("procfs: %s: more than %d descriptors", dir, maxDescriptors)
		}
		n++
		return nil
	})
	return n, false, err
}
