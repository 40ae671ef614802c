package procfs

import (
	"fmt"
	"os"
	"strconv"
)

// maxThreads bounds the threads that are looked at of one process.
const maxThreads = 32 << 10

// Table is a descriptor table of a process.
type Table struct {
	// Thread is the thread whose it is: the process's number for the first, which
	// most threads share.
	Thread int
	// Open is how many descriptors are open in it.
	Open int
}

// ReadTables counts the open descriptors in each table of a process, the first
// thread's table first. A thread with another table is taken to be the only one
// that has it. Each thread takes some 5 µs, however many descriptors it has: the
// kernel counts them. Linux before 6.2 doesn't, and telling tables apart takes the
// right to trace the process (kcmp(2)): it fails where either is missing.
func ReadTables(pid int) ([]Table, error) {
	dir := fmt.Sprintf("/proc/%d/task", pid)
	first, err := countIn(dir, pid)
	if err == nil && first == 0 { // a process without any has no need to be followed
		if _, err := os.Readlink(NetworkFile(pid)); Gone(err) {
			return nil, err // it has ended, and its parent has not asked how
		}
		err = fmt.Errorf("procfs: %s: the kernel doesn't count descriptors; Linux 6.2 does", dir)
	}
	if err != nil {
		return nil, err
	}
	tables := []Table{{pid, first}}
	threads := 0
	err = eachName(dir, func(name string) error {
		thread, err := strconv.Atoi(name)
		if err != nil || thread == pid {
			return err
		}
		if threads++; threads > maxThreads {
			return fmt.Errorf("procfs: %s: more than %d threads", dir, maxThreads)
		}
		same, err := sameTable(pid, thread)
		if err != nil || same {
			return ignoreGone(err)
		}
		open, err := countIn(dir, thread)
		if err == nil && open > 0 {
			tables = append(tables, Table{thread, open})
		}
		return ignoreGone(err)
	})
	return tables, err
}

// countIn counts the descriptors of a thread: 0 for one that is ending.
func countIn(dir string, thread int) (int, error) {
	info, err := os.Stat(fmt.Sprintf("%s/%d/fd", dir, thread))
	if err != nil {
		return 0, err
	}
	return int(info.Size()), nil
}
