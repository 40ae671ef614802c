package procfs

import (
	"fmt"
	"strings"
)

// maxDescriptors bounds how many descriptors of one process are looked at. It
// is far above what fits into memory as sockets on any machine of today.
const maxDescriptors = 64 << 20

// Descriptors counts what a process has open.
type Descriptors struct {
	// Open is the number of open descriptors, Sockets those of them that
	// are sockets of any kind.
	Open    int
	Sockets int
}

// ReadDescriptors counts the open descriptors of a process. It looks at each
// one, which costs about a microsecond apiece. Only the table of the process's
// first thread is seen: a thread with a table of its own is not counted.
func ReadDescriptors(pid int) (Descriptors, error) {
	var d Descriptors
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	err := eachName(dir, func(name string) error {
		if d.Open == maxDescriptors {
			return fmt.Errorf("procfs: %s: more than %d descriptors", dir, maxDescriptors)
		}
		target, err := readLink(dir + "/" + name)
		if Gone(err) {
			return nil // closed since the directory was read
		}
		if err != nil {
			return err
		}
		d.add(target)
		return nil
	})
	return d, err
}

// add counts a descriptor by what its link points to, such as "socket:[123]"
// or "/dev/null".
func (d *Descriptors) add(target string) {
	d.Open++
	if strings.HasPrefix(target, "socket:[") {
		d.Sockets++
	}
}
