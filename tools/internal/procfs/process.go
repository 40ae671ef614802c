package procfs

import (
	"fmt"
	"slices"
	"sort"
	"time"

	prom "github.com/prometheus/procfs"
)

// Stat is a process as /proc/PID/stat has it.
type Stat struct {
	// PID is the process, Group its process group. Parent is 0 for a process whose
	// parent can't be seen.
	PID, Parent, Group int
	// Threads is how many threads it has now.
	Threads int
	// User and System are processor time since the process began, of ended threads too;
	// Children is that of children that it has waited for. All are in steps of 10 ms.
	User, System, Children time.Duration
	// Ended means that it is a zombie, whose sockets and memory are released, until its
	// parent waits for it.
	Ended bool
	// Released means that it is ending and has no memory any more. Its files in /proc
	// belong to root from then on.
	Released bool
}

// ReadStat reads the state of a process. It fails when there is no such process.
func ReadStat(pid int) (Stat, error) { return parseProcessFS(pid, parseStat) }

func parseStat(p prom.Proc) (Stat, error) {
	s, err := p.Stat()
	if err != nil {
		return Stat{}, err
	}
	return Stat{
		PID: s.PID, Parent: s.PPID, Group: s.PGRP, Threads: s.NumThreads,
		User: ticksToDuration(s.UTime), System: ticksToDuration(s.STime), Children: ticksToDuration(uint(s.CUTime + s.CSTime)),
		Ended:    s.State == "Z" && s.NumThreads <= 1, // with more, only its first thread has ended
		Released: s.VSize == 0,
	}, nil
}

// ticksToDuration turns clock ticks into a duration: USER_HZ is 100 on every architecture that Go
// supports.
func ticksToDuration(n uint) time.Duration { return time.Duration(n) * 10 * time.Millisecond }

// The bounds of what is looked at.
const (
	maxProcesses = 128 << 10 // of the machine
	maxThreads   = 32 << 10  // of one process
)

// allProcesses returns every process of the machine, in ascending order.
func allProcesses() (prom.Procs, error) {
	all, err := parseProcFS(prom.FS.AllProcs)
	if len(all) > maxProcesses {
		return nil, fmt.Errorf("procfs: %d processes; expected at most %d", len(all), maxProcesses)
	}
	sort.Sort(all)
	return all, err
}

// allThreads returns the threads of a process.
func allThreads(pid int) (prom.Procs, error) {
	all, err := parseProcFS(func(root prom.FS) (prom.Procs, error) { return root.AllThreads(pid) })
	if len(all) > maxThreads {
		return nil, fmt.Errorf("procfs: process %d has %d threads; expected at most %d", pid, len(all), maxThreads)
	}
	return all, err
}

// ReadAllStats reads the state of every process of the machine, in ascending order. Each
// takes some 25 µs.
func ReadAllStats() (stats []Stat, err error) {
	all, err := allProcesses()
	for _, p := range all {
		s, err := parseStat(p)
		if err == nil {
			stats = append(stats, s)
		} else if !IsNotFoundOrExited(err) {
			return nil, err
		}
	}
	return stats, err
}

// PIDsByProcessGroup returns the processes of process groups, by the groups' numbers and in ascending
// order. An unknown group has none.
func PIDsByProcessGroup(groups ...int) (map[int][]int, error) {
	all, err := ReadAllStats()
	found := make(map[int][]int, len(groups))
	for _, s := range all {
		if slices.Contains(groups, s.Group) {
			found[s.Group] = append(found[s.Group], s.PID)
		}
	}
	return found, err
}

// ChildPIDs returns the processes that a process has started and that have not been
// waited for, in ascending order.
func ChildPIDs(parent int) (pids []int, err error) {
	all, err := ReadAllStats()
	for _, s := range all {
		if s.Parent == parent {
			pids = append(pids, s.PID)
		}
	}
	return pids, err
}

// CountTasksOfUser counts the tasks, threads of processes, that a user has on the machine:
// what RLIMIT_NPROC limits. Each process takes some 3 µs. A process that changed its
// user and may not be traced counts for root, and those that this process may not see
// (hidepid, another process namespace) are not counted.
func CountTasksOfUser(user uint32) (n int, err error) {
	all, err := allProcesses()
	for _, p := range all {
		// An error means that the process has ended.
		if owner, tasks, err := threadCountAndOwner(fmt.Sprintf("/proc/%d/task", p.PID)); err == nil && owner == user {
			n += tasks
		}
	}
	return n, err
}

// ProcessMemory is the resident memory of a process.
type ProcessMemory struct {
	// RSS counts each shared page in full, and is off by some pages for each thread.
	// PeakRSS is the most that it has been.
	RSS, PeakRSS int64
	// Anonymous is what of RSS is in no file: heap and stacks.
	Anonymous int64
}

// ReadProcessMemory reads /proc/PID/status, in a time that does not depend on the size of
// the process.
func ReadProcessMemory(pid int) (ProcessMemory, error) {
	s, err := parseProcessFS(pid, prom.Proc.NewStatus)
	return ProcessMemory{RSS: int64(s.VmRSS), PeakRSS: int64(max(s.VmRSS, s.VmHWM)), Anonymous: int64(s.RssAnon)}, err
}

// CountContextSwitches counts the context switches of the threads that a process has now: of one
// that waited, and of one that could have gone on. Each thread takes some 30 µs.
func CountContextSwitches(pid int) (voluntary, involuntary int64, err error) {
	all, err := allThreads(pid)
	for _, t := range all {
		if s, err := t.NewStatus(); err == nil { // otherwise it has ended
			voluntary += int64(s.VoluntaryCtxtSwitches)
			involuntary += int64(s.NonVoluntaryCtxtSwitches)
		}
	}
	return voluntary, involuntary, err
}
