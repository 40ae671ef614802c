package procfs

import (
	"fmt"
	"strconv"
	"strings"
)

// CountAllTasks reads /proc/loadavg: how many tasks the whole machine has.
func CountAllTasks() (int64, error) {
	b, err := readFile("/proc/loadavg")
	if err != nil {
		return 0, err
	}
	return parseLoad(b)
}

// parseLoad takes the number behind the slash of a line such as
//
//	0.20 0.18 0.12 1/80 11206
func parseLoad(b []byte) (int64, error) {
	fields := strings.Fields(string(b))
	if len(fields) != 5 {
		return 0, fmt.Errorf("procfs: loadavg: %d fields; expected 5", len(fields))
	}
	_, all, _ := strings.Cut(fields[3], "/")
	n, err := strconv.ParseUint(all, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("procfs: loadavg: tasks %q; expected RUNNING/ALL", fields[3])
	}
	return int64(n), nil
}

// maxProcesses bounds the processes that are looked at.
const maxProcesses = 128 << 10

// CountTasks counts the tasks, threads of processes, that a user has on the machine:
// what RLIMIT_NPROC limits. Each process takes some 3 µs. A process that changed its
// user and may not be traced counts for root, and those that this process may not see
// (hidepid, another process namespace) are not counted.
func CountTasks(user uint32) (int, error) {
	n, left := 0, maxProcesses
	err := eachName("/proc", func(name string) error {
		if _, err := strconv.Atoi(name); err != nil {
			return nil // not a process
		}
		if left--; left < 0 {
			return fmt.Errorf("procfs: more than %d processes", maxProcesses)
		}
		owner, tasks, err := tasksIn("/proc/" + name + "/task")
		if err == nil && owner == user {
			n += tasks
		}
		return nil // a process that has ended
	})
	return n, err
}
