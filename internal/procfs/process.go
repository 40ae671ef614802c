package procfs

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Stat is a process as /proc/PID/stat has it.
type Stat struct {
	// PID is the process, Group its process group. Parent is 0 for a process whose
	// parent can't be seen.
	PID, Parent, Group int
	// Command is the name of the executable, cut by the kernel to 15 bytes.
	Command string
	// User and System are the processor time of all its threads, the ended ones
	// included, in steps of 10 ms.
	User, System time.Duration
	// Waited is the processor time of the children that it has waited for, and of those
	// that they have waited for.
	Waited time.Duration
	// Threads is how many threads it has now.
	Threads int
	// Ended means that the kernel has taken back all that it had: there is only a number left,
	// until its parent takes note. A process that was killed gets there when its sockets and
	// memory are gone.
	Ended bool
}

// CPU is user and system time together.
func (s Stat) CPU() time.Duration { return s.User + s.System }

// tick is the unit of processor time: USER_HZ is 100 on every architecture that Go
// supports.
const tick = 10 * time.Millisecond

// ReadStat reads the state of a process. It fails when there is no such process.
func ReadStat(pid int) (Stat, error) {
	p, err := process(pid)
	if err != nil {
		return Stat{}, err
	}
	s, err := p.Stat()
	if err != nil {
		return Stat{}, err
	}
	return Stat{
		PID: s.PID, Parent: s.PPID, Group: s.PGRP, Command: s.Comm, Threads: s.NumThreads,
		User: time.Duration(s.UTime) * tick, System: time.Duration(s.STime) * tick,
		Waited: time.Duration(s.CUTime+s.CSTime) * tick,
		Ended:  s.State == "Z" && s.NumThreads <= 1, // with more, only its first thread has ended
	}, nil
}

// Group returns the processes of a process group, in ascending order. An unknown group
// has none.
func Group(group int) ([]int, error) {
	found, err := Groups(group)
	return found[group], err
}

// Groups is Group for several process groups, by their numbers, of one walk over all
// processes of the machine.
func Groups(groups ...int) (map[int][]int, error) {
	found := make(map[int][]int, len(groups))
	err := eachStat(func(pid int, s Stat) {
		if slices.Contains(groups, s.Group) {
			found[s.Group] = append(found[s.Group], pid)
		}
	})
	for _, pids := range found {
		slices.Sort(pids)
	}
	return found, err
}

// Children returns the processes that a process has started and that have not been
// waited for, in ascending order.
func Children(parent int) (pids []int, err error) {
	err = eachStat(func(pid int, s Stat) {
		if s.Parent == parent {
			pids = append(pids, pid)
		}
	})
	slices.Sort(pids)
	return pids, err
}

// eachStat calls do with every process of the machine, in no order.
func eachStat(do func(pid int, s Stat)) error {
	return eachProcess(func(pid int) error {
		s, err := ReadStat(pid)
		if err == nil {
			do(pid, s)
		}
		return ignoreGone(err)
	})
}

// maxProcesses bounds the processes that are looked at.
const maxProcesses = 128 << 10

// eachProcess calls do with the number of every process, in no order.
func eachProcess(do func(pid int) error) error {
	left := maxProcesses
	return eachName("/proc", func(name string) error {
		pid, err := strconv.Atoi(name)
		if err != nil {
			return nil // not a process
		}
		if left--; left < 0 {
			return fmt.Errorf("procfs: more than %d processes", maxProcesses)
		}
		return do(pid)
	})
}

// CountTasks counts the tasks, threads of processes, that a user has on the machine:
// what RLIMIT_NPROC limits. Each process takes some 3 µs. A process that changed its
// user and may not be traced counts for root, and those that this process may not see
// (hidepid, another process namespace) are not counted.
func CountTasks(user uint32) (n int, err error) {
	err = eachProcess(func(pid int) error {
		owner, tasks, err := tasksIn(fmt.Sprintf("/proc/%d/task", pid))
		if err == nil && owner == user {
			n += tasks
		}
		return nil // a process that has ended
	})
	return n, err
}

// Descriptors counts what a process has open.
type Descriptors struct {
	// Open is the number of open descriptors, Sockets those of them that are sockets of
	// any kind.
	Open, Sockets int
}

// ReadDescriptors counts the open descriptors of a process. It looks at each one, which
// costs about a microsecond apiece. Only the table of the process's first thread is
// seen: a thread with a table of its own is not counted.
func ReadDescriptors(pid int) (d Descriptors, err error) {
	dir := fmt.Sprintf("/proc/%d/fd/", pid)
	err = eachName(dir, func(name string) error {
		target, err := os.Readlink(dir + name)
		if err != nil {
			return ignoreGone(err) // closed since the directory was read
		}
		d.Open++
		if strings.HasPrefix(target, "socket:[") {
			d.Sockets++
		}
		return nil
	})
	return d, err
}

// Rlimit is a resource limit of a process, see getrlimit(2); -1 is none.
type Rlimit struct{ Soft, Hard int64 }

// Rlimits are limits of a process.
type Rlimits struct {
	// Nofile is above the highest descriptor that can be opened in a table, Memlock
	// the bytes of memory that can be locked, Nproc how many tasks there can be of
	// the process's user.
	Nofile, Memlock, Nproc Rlimit
}

// NetworkFile is the file by which the network namespace of a process is entered,
// see setns(2).
func NetworkFile(pid int) string { return fmt.Sprintf("/proc/%d/ns/net", pid) }
