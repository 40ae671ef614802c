package procfs

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Stat is a process as /proc/PID/stat has it.
type Stat struct {
	// PID is the process, Group its process group. Parent is 0 for a process whose
	// parent can't be seen.
	PID, Parent, Group int
	// Threads is how many threads it has now.
	Threads int
	// Ended means that it is a zombie, whose sockets and memory are released, until its
	// parent waits for it.
	Ended bool
}

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
		PID: s.PID, Parent: s.PPID, Group: s.PGRP, Threads: s.NumThreads,
		Ended: s.State == "Z" && s.NumThreads <= 1, // with more, only its first thread has ended
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
	err := eachStat(func(s Stat) {
		if slices.Contains(groups, s.Group) {
			found[s.Group] = append(found[s.Group], s.PID)
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
	err = eachStat(func(s Stat) {
		if s.Parent == parent {
			pids = append(pids, s.PID)
		}
	})
	slices.Sort(pids)
	return pids, err
}

// eachStat calls do with every process of the machine, in no order.
func eachStat(do func(Stat)) error {
	return eachProcess(func(pid int) error {
		s, err := ReadStat(pid)
		if err == nil {
			do(s)
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

// maxThreads bounds the threads that are looked at of one process.
const maxThreads = 32 << 10

// Table is a descriptor table of a process.
type Table struct {
	// Thread is the thread that has it: the process's number for the first, which most
	// threads share.
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

// Rlimit is a resource limit of a process, see getrlimit(2); -1 is none.
type Rlimit struct{ Soft, Hard int64 }

// Rlimits are limits of a process: Nofile is above the highest descriptor that can be
// opened in a table, Memlock the bytes of memory that can be locked, Nproc how many tasks
// there can be of the process's user.
type Rlimits struct{ Nofile, Memlock, Nproc Rlimit }

// Rights are what the kernel lets a process do.
type Rights struct {
	// User is its real user.
	User uint32
	// Capabilities are those in effect, a bit each by the numbers of
	// linux/capability.h.
	Capabilities uint64
	// First means that its user namespace is the machine's first one: in another, as
	// of a container without root, its capabilities are for what belongs to that.
	First bool
}

// Some capabilities, see capabilities(7).
const (
	CapNetAdmin    = 12
	CapIPCLock     = 14
	CapSysAdmin    = 21
	CapSysResource = 24
)

// HasMachine reports whether all of the capabilities are in effect for the whole machine.
func (r Rights) HasMachine(capabilities ...int) bool {
	return r.First && !slices.ContainsFunc(capabilities, func(c int) bool { return r.Capabilities&(1<<c) == 0 })
}

// ReadRights reads /proc/PID/status and uid_map.
func ReadRights(pid int) (Rights, error) {
	p, err := process(pid)
	if err != nil {
		return Rights{}, err
	}
	status, err := p.NewStatus()
	if err != nil {
		return Rights{}, err
	}
	users, err := readFile(fmt.Sprintf("/proc/%d/uid_map", pid))
	if err != nil && !Gone(err) { // a kernel without user namespaces has none
		return Rights{}, err
	}
	return Rights{User: uint32(status.UIDs[0]), Capabilities: status.CapEff, First: err != nil || mapsAll(users)}, nil
}

// mapsAll reports whether /proc/PID/uid_map maps each user to itself, which only that of
// the first user namespace does unless somebody makes another so on purpose.
func mapsAll(users string) bool {
	return slices.Equal(strings.Fields(users), []string{"0", "0", "4294967295"})
}

// NetworkFile is the file by which the network namespace of a process is entered,
// see setns(2).
func NetworkFile(pid int) string { return fmt.Sprintf("/proc/%d/ns/net", pid) }

// SameNetwork reports whether the calling thread is in the network namespace of a
// process. It takes the right to trace it.
func SameNetwork(pid int) (bool, error) {
	theirs, err := os.Readlink(NetworkFile(pid))
	if err != nil {
		return false, err
	}
	own, err := os.Readlink("/proc/thread-self/ns/net")
	return own == theirs, err
}
