package procfs

import (
	"fmt"
	"os"
	"strings"

	prom "github.com/prometheus/procfs"
)

// CountDescriptors counts the open descriptors in the table of a process's first thread. The kernel counts
// them; before Linux 6.2 each takes about 0.2 µs.
func CountDescriptors(pid int) (int, error) { return parseProcessFS(pid, prom.Proc.FileDescriptorsLen) }

// Descriptors counts the open descriptors of a process.
type Descriptors struct {
	// Open is the number of open descriptors. Sockets is the number of sockets among them.
	Open, Sockets int
}

// CountDescriptorsAndSockets counts the open descriptors of a process. It examines each one, which takes about a
// microsecond. It sees only the table of the process's first thread, not separate tables of other threads.
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
		if err == nil { // otherwise the descriptor has been closed since the directory was read
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
	// Thread is the thread that has the table. For the table of the first thread, which most threads share, it
	// is the process ID.
	Thread int
	// Open is the number of open descriptors in the table.
	Open int
}

// CountDescriptorsByTable counts the open descriptors in each descriptor table of a process. The first thread's table
// comes first. A thread with another table is assumed to be the only thread with that table. Each thread takes about 5
// µs, and each table as much as CountDescriptors. CountDescriptorsByTable needs the right to trace the process
// (kcmp(2)).
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
		if open > 0 { // otherwise the thread is ending
			tables = append(tables, DescriptorTable{t.PID, open})
		}
	}
	return tables, err
}

// threadsWithOwnTable returns the threads of a process that do not share the first thread's descriptor table.
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
