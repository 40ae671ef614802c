package procfs

import (
	"fmt"
	"os"
	"strings"

	prom "github.com/prometheus/procfs"
)

// CountDescriptors returns the number of open descriptors of a process. If threads have separate descriptor tables,
// CountDescriptors counts only the descriptors in the table of the process's first thread. Before Linux 6.2, the call
// takes about 0.2 µs per descriptor.
func CountDescriptors(pid int) (int, error) { return parseProcessFS(pid, prom.Proc.FileDescriptorsLen) }

type Descriptors struct {
	// Open is the number of open descriptors. Sockets is how many of them are sockets.
	Open, Sockets int
}

// CountDescriptorsAndSockets counts the open descriptors of a process, and how many of them are sockets. If threads
// have separate descriptor tables, it counts only the descriptors in the table of the process's first thread. The call
// takes about a microsecond per descriptor.
func CountDescriptorsAndSockets(pid int) (d Descriptors, err error) {
	dir := fmt.Sprintf("/proc/%d/fd/", pid)
	for name, err := range dirEntryNames(dir) {
		if err != nil {
			return d, err
		}
		target, err := os.Readlink(dir + name)
		if nilIfNotFoundOrExited(err) != nil {
			return d, err
		}
		if err == nil { // otherwise, the descriptor has been closed meanwhile
			d.Open++
		}
		if strings.HasPrefix(target, "socket:[") {
			d.Sockets++
		}
	}
	return d, nil
}

// DescriptorTable describes one of the descriptor tables of a process.
type DescriptorTable struct {
	// Thread is the ID of a thread that uses the table. For the table of the first thread, it is the process ID.
	Thread int
	Open   int
}

// CountDescriptorsByTable counts the open descriptors in each descriptor table of a process. The first element of the
// result is the table of the process's first thread. The caller needs the right to trace the process; see kcmp(2).
func CountDescriptorsByTable(pid int) ([]DescriptorTable, error) {
	first, err := CountDescriptors(pid)
	if err != nil {
		return nil, err
	}
	tables := []DescriptorTable{{pid, first}}
	others, err := threadsWithOwnDescriptorTable(pid)
	for _, t := range others {
		open, err := t.FileDescriptorsLen()
		if nilIfNotFoundOrExited(err) != nil {
			return nil, err
		}
		if open > 0 { // otherwise the thread is ending
			tables = append(tables, DescriptorTable{t.PID, open})
		}
	}
	return tables, err
}

func threadsWithOwnDescriptorTable(pid int) (exceptFirst prom.Procs, err error) {
	all, err := allThreads(pid)
	for _, t := range all {
		if t.PID == pid {
			continue
		}
		same, err := sharesDescriptorTable(pid, t.PID)
		if nilIfNotFoundOrExited(err) != nil {
			return nil, err
		}
		if err == nil && !same {
			exceptFirst = append(exceptFirst, t)
		}
	}
	return exceptFirst, err
}
