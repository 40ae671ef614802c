package procfs

import (
	"fmt"
	"slices"
	"sort"
	"time"

	prom "github.com/prometheus/procfs"
)

// Stat contains what /proc/PID/stat reports about a process.
type Stat struct {
	// PID is the process ID, and Group the process group ID. Parent is 0 if the parent process is not visible.
	PID, Parent, Group int
	Threads            int
	// User and System are the processor time that the process has used, including its ended threads. Children is
	// the processor time of children for which the process has waited. All three have a resolution of 10 ms.
	User, System, Children time.Duration
	// Ended reports that the process is a zombie, which has released its sockets and memory.
	Ended bool
	// Released reports that the process is ending and has released its memory. Its files in /proc then belong to root.
	Released bool
}

// ReadStat reads the state of a process. It returns an error if the process does not exist.
func ReadStat(pid int) (Stat, error) { return parseProcessFS(pid, parseStat) }

func parseStat(p prom.Proc) (Stat, error) {
	s, err := p.Stat()
	if err != nil {
		return Stat{}, err
	}
	return Stat{
		PID: s.PID, Parent: s.PPID, Group: s.PGRP, Threads: s.NumThreads,
		User: ticksToDuration(s.UTime), System: ticksToDuration(s.STime), Children: ticksToDuration(uint(s.CUTime + s.CSTime)),
		Ended:    s.State == "Z" && s.NumThreads <= 1, // with more threads, only the first thread has ended
		Released: s.VSize == 0,
	}, nil
}

func ticksToDuration(n uint) time.Duration { return time.Duration(n) * 10 * time.Millisecond }

const (
	maxProcesses = 128 << 10 // on the machine
	maxThreads   = 32 << 10  // in one process
)

func allProcesses() (prom.Procs, error) {
	all, err := parseProcFS(prom.FS.AllProcs)
	if len(all) > maxProcesses {
		return nil, fmt.Errorf("procfs: %d processes; expected at most %d", len(all), maxProcesses)
	}
	sort.Sort(all)
	return all, err
}

func allThreads(pid int) (prom.Procs, error) {
	all, err := parseProcFS(func(root prom.FS) (prom.Procs, error) { return root.AllThreads(pid) })
	if len(all) > maxThreads {
		return nil, fmt.Errorf("procfs: process %d has %d threads; expected at most %d", pid, len(all), maxThreads)
	}
	return all, err
}

// ReadAllStats reads the state of every process, ordered by process ID. It takes about 25 µs per process.
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

// PIDsByProcessGroup returns the IDs of the processes in each of the given process groups, in ascending order. A group
// without processes has no entry in the map.
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

// ChildPIDs returns the IDs of the children of a process, in ascending order. Zombies are included.
func ChildPIDs(parent int) (pids []int, err error) {
	all, err := ReadAllStats()
	for _, s := range all {
		if s.Parent == parent {
			pids = append(pids, s.PID)
		}
	}
	return pids, err
}

// CountTasksOfUser counts the tasks (threads) of all visible processes with the given effective user ID. The result can
// differ from the count that RLIMIT_NPROC limits, because the kernel counts tasks by real user ID.
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

type ProcessMemory struct {
	// RSS is resident memory, including the full size of shared pages. It is inexact by some pages per thread.
	// PeakRSS is the highest RSS so far.
	RSS, PeakRSS int64
	// Anonymous is the part of RSS that is not backed by a file, such as heap and stacks.
	Anonymous int64
}

// ReadProcessMemory reads a process's memory usage from /proc/PID/status. The time for reading does not depend on the
// size of the process.
func ReadProcessMemory(pid int) (ProcessMemory, error) {
	s, err := parseProcessFS(pid, prom.Proc.NewStatus)
	return ProcessMemory{RSS: int64(s.VmRSS), PeakRSS: int64(max(s.VmRSS, s.VmHWM)), Anonymous: int64(s.RssAnon)}, err
}

// CountContextSwitches counts the context switches of all threads that the process has now. A context switch is
// voluntary if the thread begins to wait, and involuntary if the kernel preempts the thread.
func CountContextSwitches(pid int) (voluntary, involuntary int64, err error) {
	all, err := allThreads(pid)
	for _, t := range all {
		if s, err := t.NewStatus(); err == nil { // otherwise, the thread has ended
			voluntary += int64(s.VoluntaryCtxtSwitches)
			involuntary += int64(s.NonVoluntaryCtxtSwitches)
		}
	}
	return voluntary, involuntary, err
}
