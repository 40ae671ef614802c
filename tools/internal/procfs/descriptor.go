package procfs

import (
	"fmt"
	"os"
	"strings"

	prom "github.com/prometheus/procfs"
)

// CountDescriptors counts the open descriptors in the table of a process's first thread.
// The kernel counts them; before Linux 6.2 each one takes some 0.2 µs.
func CountDescriptors(pid int) (int, error) { return parseProcessFS(pid, prom.Proc.FileDescriptorsLen) }

// Descriptors counts what a process has open.
type Descriptors struct {
	// Open is the number of open descriptors, Sockets those of them that are sockets of
	// any kind.
	Open, Sockets int
}

// CountDescriptorsAndSockets counts the open descriptors of a process. It looks at each one, which
// costs about a microsecond apiece. Only the table of the process's first thread is
// seen: a thread with a table of its own is not counted.
func CountDescriptorsAndSockets(pid int) (d Descriptors, err error) {
	dir := fmt.Sprintf("/proc/%d/fd/", pid)
	for name, err := range dirEntryNames(dir) {
		if err != nil {
			return d, err
		}
		target, err := os.Readlink(dir + name)
		if nilIfGone(err) != nil {
			return d, err
		}
		if err == nil { // otherwise it was closed since the directory was read
			d.Open++
		}
		if strings.HasPrefix(target, "socket:[") {
			d.Sockets++
		}
	}
	return d, nil
}

// DescriptorTable is a descriptor table of a process.
type DescriptorTable struct {
	// Thread is the thread that has it: the process's number for the first, which most
	// threads share.
	Thread int
	// Open is how many descriptors are open in it.
	Open int
}

// CountDescriptorsByTable counts the open descriptors in each table of a process, the first thread's
// table first. A thread with another table is taken to be the only one that has it. Each
// thread takes some 5 µs, and each table as much as CountDescriptors. It fails without the
// right to trace the process (kcmp(2)).
func CountDescriptorsByTable(pid int) ([]DescriptorTable, error) {
	first, err := CountDescriptors(pid)
	if err != nil {
		return nil, err
	}
	tables := []DescriptorTable{{pid, first}}
	others, err := threadsWithOwnTable(pid)
	for _, t := range others {
		open, err := t.FileDescriptorsLen()
		if nilIfGone(err) != nil {
			return nil, err
		}
		if open > 0 { // otherwise it is ending
			tables = append(tables, DescriptorTable{t.PID, open})
		}
	}
	return tables, err
}

// threadsWithOwnTable returns the threads of a process that do not share the first one's
// descriptor table.
func threadsWithOwnTable(pid int) (owners prom.Procs, err error) {
	all, err := allThreads(pid)
	for _, t := range all {
		if t.PID == pid {
			continue
		}
		same, err := sharesDescriptorTable(pid, t.PID)
		if nilIfGone(err) != nil {
			return nil, err
		}
		if err == nil && !same {
			owners = append(owners, t)
		}
	}
	return owners, err
}
