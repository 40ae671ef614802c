// Package cgroup reads the limits of a process's control groups, versions 1 and 2. On systems other than Linux there
// are no limits. All functions are safe for concurrent use.
package cgroup

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
)

// Limit is a limit of a control group, with the current usage. The zero value means no limit.
type Limit struct {
	// Max is the limit and Used the current usage, in bytes or tasks.
	Max, Used int64
	// From names the group and setting, such as "cgroup /a/b memory.max". File is the path of the setting's file.
	From, File string
}

func (l Limit) headroom() int64 { return l.Max - l.Used }

// Limits contains the limits that control groups set for a process. If several groups limit the same resource, Limits
// contains the limit with the least headroom (Max - Used).
type Limits struct {
	// Memory is the limit of memory in bytes. Memory.Used excludes the page cache.
	Memory Limit
	// SocketMemory is the limit of the buffers of TCP sockets, in bytes. Only cgroup version 1 has this limit.
	SocketMemory Limit
	// Tasks is the limit of the number of threads, including the main thread of each process.
	Tasks Limit
}

// ReadLimits reads the control group limits of the process pid. The groups must be mounted below /sys/fs/cgroup.
func ReadLimits(pid int) (Limits, error) { return readLimits("", strconv.Itoa(pid)) }

// readLimits implements ReadLimits. root is empty except in tests. pidOrSelf is a process ID or "self".
func readLimits(root, pidOrSelf string) (Limits, error) {
	g, err := readCgroupPaths(root, pidOrSelf)
	if err != nil {
		return Limits{}, err
	}
	return Limits{
		Memory:       readLimitWithLeastHeadroom(root, memoryControllerCandidates(g)),
		SocketMemory: readLimitWithLeastHeadroom(root, []controller{{"/memory", g.memory, []string{"memory.kmem.tcp.limit_in_bytes"}, "memory.kmem.tcp.usage_in_bytes", nil}}),
		Tasks:        readLimitWithLeastHeadroom(root, taskControllers(g)),
	}, nil
}

// SmallestKnownMemoryLimit returns the smallest of the control group limits, the machine's memory and GOMEMLIMIT, in
// bytes. source names this limit, for example "cgroup /a/b memory.max". On systems other than Linux, only GOMEMLIMIT is
// known. If no limit is known, the results are math.MaxInt64 and "none known".
func SmallestKnownMemoryLimit() (limit int64, source string) {
	limit, source = smallestSystemMemoryLimit("")
	if own := debug.SetMemoryLimit(-1); own < limit {
		return own, "GOMEMLIMIT"
	}
	return limit, source
}

// smallestSystemMemoryLimit is like SmallestKnownMemoryLimit, but ignores GOMEMLIMIT. root is empty except in tests.
func smallestSystemMemoryLimit(root string) (limit int64, source string) {
	limit, source = math.MaxInt64, "none known"
	if g, err := readCgroupPaths(root, "self"); err == nil {
		for _, c := range memoryControllerCandidates(g) {
			c.forEachLimitUpward(root, func(l Limit, _ string) {
				if l.Max > 0 && l.Max < limit {
					limit, source = l.Max, l.From
				}
			})
		}
	}
	if total := readMachineMemory(root); total > 0 && total < limit {
		return total, "the machine's memory"
	}
	return limit, source
}

func readMachineMemory(root string) (bytesOrZero int64) {
	b, err := os.ReadFile(root + "/proc/meminfo")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	digits := strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(line, "MemTotal:"), "kB"))
	kib, err := strconv.ParseUint(digits, 10, 53)
	if err != nil {
		return 0
	}
	return int64(kib) << 10
}

type controller struct {
	mount, group string // mount is below /sys/fs/cgroup
	limits       []string
	used         string
	// used is the name of the file that contains the usage. droppable lists lines of memory.stat: the usage includes
	// their memory, but the kernel can drop it.
	droppable []string
}

// unifiedMount and hybridMount are mount points of cgroup version 2, relative to /sys/fs/cgroup.
const unifiedMount, hybridMount = "", "/unified"

func memoryControllerCandidates(g cgroupPaths) []controller {
	limits, droppable := []string{"memory.max", "memory.high"}, []string{"inactive_file", "active_file"}
	return []controller{
		{"/memory", g.memory, []string{"memory.limit_in_bytes"}, "memory.usage_in_bytes", []string{"total_inactive_file", "total_active_file"}},
		{unifiedMount, g.unified, limits, "memory.current", droppable},
		{hybridMount, g.unified, limits, "memory.current", droppable},
	}
}

func taskControllers(g cgroupPaths) []controller {
	limits := []string{"pids.max"}
	return []controller{
		{"/pids", g.pids, limits, "pids.current", nil},
		{unifiedMount, g.unified, limits, "pids.current", nil},
		{hybridMount, g.unified, limits, "pids.current", nil},
	}
}

// unlimitedFrom is the smallest number in a limit file that means no limit. Cgroup version 1 has no word for no limit
// and uses a very large number instead.
const unlimitedFrom = 1 << 62

// forEachLimitUpward calls the function do for each limit of c's control group and of the group's ancestors. l is a
// limit, without l.Used. dir is the directory of the group that sets l.
func (c *controller) forEachLimitUpward(root string, do func(l Limit, dir string)) {
	for group := c.group; group != ""; group = path.Dir(group) {
		dir := path.Join("/sys/fs/cgroup", c.mount, group)
		for _, file := range c.limits {
			name := path.Join(dir, file)
			if most, err := readNumberOrMax(root + name); err == nil && most < unlimitedFrom {
				do(Limit{Max: most, From: "cgroup " + group + " " + file, File: name}, root+dir)
			}
		}
		if group == "/" {
			return
		}
	}
}

func readLimitWithLeastHeadroom(root string, controllers []controller) (found Limit) {
	for _, c := range controllers {
		c.forEachLimitUpward(root, func(l Limit, dir string) {
			if l.Used = c.readUsageWithoutCache(dir); found.File == "" || l.headroom() < found.headroom() {
				found = l
			}
		})
	}
	return found
}

func (c *controller) readUsageWithoutCache(dir string) int64 {
	used, err := readNumberOrMax(path.Join(dir, c.used))
	if err != nil || len(c.droppable) == 0 {
		return used
	}
	stat, _ := os.ReadFile(path.Join(dir, "memory.stat")) // the top group has none
	for line := range strings.Lines(string(stat)) {
		name, digits, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseUint(digits, 10, 63); err == nil && slices.Contains(c.droppable, name) {
			used -= min(int64(n), used)
		}
	}
	return used
}

// cgroupPaths contains the paths of a process's control groups: memory and pids for version 1, unified for version 2.
type cgroupPaths struct{ memory, pids, unified string }

func readCgroupPaths(root, pidOrSelf string) (cgroupPaths, error) {
	b, err := os.ReadFile(root + "/proc/" + pidOrSelf + "/cgroup")
	if err != nil {
		return cgroupPaths{}, err
	}
	return parseCgroupPaths(b), nil
}

// parseCgroupPaths parses the content of /proc/PID/cgroup.
func parseCgroupPaths(b []byte) cgroupPaths {
	var g cgroupPaths
	for line := range bytes.Lines(b) {
		id, rest, _ := strings.Cut(strings.TrimSuffix(string(line), "\n"), ":")
		controllers, group, ok := strings.Cut(rest, ":")
		if !ok || !strings.HasPrefix(group, "/") {
			continue
		}
		group = path.Clean(group) // a group outside the namespace starts with /..
		if id == "0" {
			g.unified = group
		}
		for name := range strings.SplitSeq(controllers, ",") {
			switch name {
			case "memory":
				g.memory = group
			case "pids":
				g.pids = group
			}
		}
	}
	return g
}

func readNumberOrMax(file string) (int64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	text := strings.TrimSpace(string(b))
	if text == "max" {
		return math.MaxInt64, nil
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("cgroup: %s: %w", file, err)
	}
	return int64(n), nil
}
