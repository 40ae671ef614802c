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

// Limit is a limit of a control group. The zero value means no limit.
type Limit struct {
	// Max is the limit and Used the current usage, in bytes or tasks.
	Max, Used int64
	// From names the group and setting, such as "cgroup /a/b memory.max". File is the path of the setting's file.
	From, File string
}

func (l Limit) headroom() int64 { return l.Max - l.Used }

// Limits are the limits of a process's group and of the group's ancestors, whose usage includes the groups below them.
// Of several limits for the same resource, the one with the least headroom (Max - Used) is reported.
type Limits struct {
	// Memory limits memory, in bytes. Its Used excludes the page cache, which the kernel drops before it denies memory.
	Memory Limit
	// SocketMemory limits only the buffers of TCP sockets, in bytes. Only cgroup version 1 has such a limit.
	SocketMemory Limit
	// Tasks limits the sum of processes and threads.
	Tasks Limit
}

// ReadLimits reads the limits of a process. Only groups mounted below /sys/fs/cgroup are read.
func ReadLimits(pid int) (Limits, error) { return readMemoryAndTaskLimits("", strconv.Itoa(pid)) }

// readMemoryAndTaskLimits implements ReadLimits for the files below root. process is a process ID or "self".
func readMemoryAndTaskLimits(root, process string) (Limits, error) {
	g, err := readCgroupPaths(root, process)
	if err != nil {
		return Limits{}, err
	}
	return Limits{
		Memory:       readLimitWithLeastHeadroom(root, memoryControllers(g)),
		SocketMemory: readLimitWithLeastHeadroom(root, []controller{{"/memory", g.memory, []string{"memory.kmem.tcp.limit_in_bytes"}, "memory.kmem.tcp.usage_in_bytes", nil}}),
		Tasks:        readLimitWithLeastHeadroom(root, taskControllers(g)),
	}, nil
}

// SmallestMemoryLimit returns the memory that this process may use, in bytes. This is the smallest of its control
// groups' limits, the machine's memory and GOMEMLIMIT. source describes the smallest one, for example as "cgroup /a/b
// memory.max", "the machine's memory" or "GOMEMLIMIT". If no limit is known, the results are math.MaxInt64 and "none
// known". On systems other than Linux, only GOMEMLIMIT is known. Limits can change while a process runs.
func SmallestMemoryLimit() (limit int64, source string) {
	limit, source = readCgroupOrMachineMemoryLimit("")
	if own := debug.SetMemoryLimit(-1); own < limit {
		return own, "GOMEMLIMIT"
	}
	return limit, source
}

// readCgroupOrMachineMemoryLimit is like SmallestMemoryLimit, but ignores GOMEMLIMIT and reads the files below root.
func readCgroupOrMachineMemoryLimit(root string) (limit int64, source string) {
	limit, source = math.MaxInt64, "none known"
	if g, err := readCgroupPaths(root, "self"); err == nil {
		for _, c := range memoryControllers(g) {
			c.forEachLimit(root, func(l Limit, _ string) {
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
	// droppable names the lines of memory.stat with memory that used includes but the kernel can drop.
	droppable []string
}

// Mount points of cgroup version 2. If version 1 is mounted as well, version 2 is at hybridMount.
const unifiedMount, hybridMount = "", "/unified"

func memoryControllers(g cgroupPaths) []controller {
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

// unlimitedFrom is the smallest number that means no limit. Version 1 reports a very large number if there is no limit.
const unlimitedFrom = 1 << 62

// forEachLimit calls do for each limit of the group and of its ancestors up to the mount. l.Used is not set. dir is the
// directory of the group that has the limit. In a container without a cgroup namespace, c.group is a path on the host
// that does not exist below the mount. The container's limit is then at the mount itself. If c.group is empty, there
// are no limits. Missing and unreadable files are ignored.
func (c *controller) forEachLimit(root string, do func(l Limit, dir string)) {
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
		c.forEachLimit(root, func(l Limit, dir string) {
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

// cgroupPaths contains the paths of a process's groups. memory and pids are those of version 1, unified is that of
// version 2. "" means no group.
type cgroupPaths struct{ memory, pids, unified string }

func readCgroupPaths(root, process string) (cgroupPaths, error) {
	b, err := os.ReadFile(root + "/proc/" + process + "/cgroup")
	if err != nil {
		return cgroupPaths{}, err
	}
	return parseCgroupPaths(b), nil
}

// parseCgroupPaths parses /proc/PID/cgroup, with lines like "4:cpu,memory:/a/b", or "0::/a/b" for version 2.
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
