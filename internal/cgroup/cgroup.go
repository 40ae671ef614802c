// Package cgroup reads the limits of the control groups that a process is in, of both
// versions. It stands on the standard library alone. On a system other than Linux no
// file is there, and so no limit. All functions are safe for concurrent use.
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

// Limit is a limit of a control group. The zero value is none.
type Limit struct {
	// Max is what the group may have, in bytes or tasks, and Used what it has.
	Max, Used int64
	// From is what sets it, such as "cgroup /a/b memory.max", and File the path of
	// that file.
	From, File string
}

// headroom is what is left.
func (l Limit) headroom() int64 { return l.Max - l.Used }

// Limits are those of the groups that a process is in. A group has what all groups
// below it have, so each limit is the one of theirs that leaves the least room.
type Limits struct {
	// Memory is in bytes. Used is without pages of files, which the kernel drops
	// before it refuses any.
	Memory Limit
	// SocketMemory limits the buffers of TCP sockets alone, in bytes. Only version
	// 1 of cgroups has it.
	SocketMemory Limit
	// Tasks limits processes and threads together.
	Tasks Limit
}

// ReadLimits reads the limits of a process. Groups that are not mounted below /sys/fs/cgroup
// are not seen.
func ReadLimits(pid int) (Limits, error) { return readLimits("", strconv.Itoa(pid)) }

// readLimits is Read with files below root, of a process by its number or "self".
func readLimits(root, process string) (Limits, error) {
	g, err := readGroups(root, process)
	if err != nil {
		return Limits{}, err
	}
	return Limits{
		Memory:       tightestLimit(root, memoryControllers(g)),
		SocketMemory: tightestLimit(root, []controller{{"/memory", g.memory, []string{"memory.kmem.tcp.limit_in_bytes"}, "memory.kmem.tcp.usage_in_bytes", nil}}),
		Tasks:        tightestLimit(root, taskControllers(g)),
	}, nil
}

// MemoryLimit is how much memory, in bytes, this process may use, and what says so:
// the least of the limits of its control groups, of the machine's memory and of Go's
// own limit. from is such as "cgroup /a/b memory.max", "the machine's memory" or
// "GOMEMLIMIT". Where there is none, limit is math.MaxInt64 and from is "none known";
// elsewhere than on Linux only Go's own limit is known. It takes some tens of
// microseconds; limits can change while a process runs.
func MemoryLimit() (limit int64, from string) {
	limit, from = readMemoryLimit("")
	if own := debug.SetMemoryLimit(-1); own < limit {
		return own, "GOMEMLIMIT"
	}
	return limit, from
}

// readMemoryLimit is MemoryLimit without Go's own, with files below root.
func readMemoryLimit(root string) (limit int64, from string) {
	limit, from = math.MaxInt64, "none known"
	if g, err := readGroups(root, "self"); err == nil {
		for _, c := range memoryControllers(g) {
			c.forEachLimit(root, func(l Limit, _ string) {
				if l.Max > 0 && l.Max < limit {
					limit, from = l.Max, l.From
				}
			})
		}
	}
	if total := readMachineMemory(root); total > 0 && total < limit {
		return total, "the machine's memory"
	}
	return limit, from
}

// readMachineMemory is the machine's memory, 0 if it is not known.
func readMachineMemory(root string) int64 {
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

// controller is where a kind of limit is found, and by the names of which files.
type controller struct {
	mount, group string // mount is below /sys/fs/cgroup
	limits       []string
	used         string
	// These lines of memory.stat are counted in used, and can be dropped.
	droppable []string
}

// Version 2 is mounted at one of these: the second where both versions are in use.
const unifiedMount, hybridMount = "", "/unified"

func memoryControllers(g groups) []controller {
	limits, droppable := []string{"memory.max", "memory.high"}, []string{"inactive_file", "active_file"}
	return []controller{
		{"/memory", g.memory, []string{"memory.limit_in_bytes"}, "memory.usage_in_bytes", []string{"total_inactive_file", "total_active_file"}},
		{unifiedMount, g.unified, limits, "memory.current", droppable},
		{hybridMount, g.unified, limits, "memory.current", droppable},
	}
}

func taskControllers(g groups) []controller {
	limits := []string{"pids.max"}
	return []controller{
		{"/pids", g.pids, limits, "pids.current", nil},
		{unifiedMount, g.unified, limits, "pids.current", nil},
		{hybridMount, g.unified, limits, "pids.current", nil},
	}
}

// unlimitedFrom and more is none: version 1 writes none as the largest number of whole pages.
const unlimitedFrom = 1 << 62

// forEachLimit calls do with each limit, without Used, of a group and those above it up to the
// mount, and with the group's directory. In a container without a namespace of its own
// for cgroups the group's path is the host's, which is not below the mount; the
// container's limit is then found at the mount itself, where the walk ends. The empty
// group is none. Files that are not there, or can't be read, set no limit.
func (c *controller) forEachLimit(root string, do func(l Limit, dir string)) {
	for group := c.group; group != ""; group = path.Dir(group) {
		dir := path.Join("/sys/fs/cgroup", c.mount, group)
		for _, file := range c.limits {
			name := path.Join(dir, file)
			if most, err := readNumber(root + name); err == nil && most < unlimitedFrom {
				do(Limit{Max: most, From: "cgroup " + group + " " + file, File: name}, root+dir)
			}
		}
		if group == "/" {
			return
		}
	}
}

// tightestLimit finds the limit that leaves the least room.
func tightestLimit(root string, controllers []controller) (found Limit) {
	for _, c := range controllers {
		c.forEachLimit(root, func(l Limit, dir string) {
			if l.Used = c.readUsage(dir); found.File == "" || l.headroom() < found.headroom() {
				found = l
			}
		})
	}
	return found
}

// readUsage is what a group has without what can be dropped, 0 where that is not known.
func (c *controller) readUsage(dir string) int64 {
	used, err := readNumber(path.Join(dir, c.used))
	if err != nil || len(c.droppable) == 0 {
		return used
	}
	stat, _ := os.ReadFile(path.Join(dir, "memory.stat")) // the group at the top has none
	for line := range strings.Lines(string(stat)) {
		name, digits, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseUint(digits, 10, 63); err == nil && slices.Contains(c.droppable, name) {
			used -= min(int64(n), used)
		}
	}
	return used
}

// groups are those of a process, "" for none: those that limit its memory and its
// tasks under version 1, and the one under version 2.
type groups struct{ memory, pids, unified string }

func readGroups(root, process string) (groups, error) {
	b, err := os.ReadFile(root + "/proc/" + process + "/cgroup")
	if err != nil {
		return groups{}, err
	}
	return parseGroups(b), nil
}

// parseGroups parses /proc/PID/cgroup, whose lines are like "4:cpu,memory:/a/b", and
// for version 2 "0::/a/b".
func parseGroups(b []byte) groups {
	var g groups
	for line := range bytes.Lines(b) {
		id, rest, _ := strings.Cut(strings.TrimSuffix(string(line), "\n"), ":")
		controllers, group, ok := strings.Cut(rest, ":")
		if !ok || !strings.HasPrefix(group, "/") {
			continue
		}
		group = path.Clean(group) // a group outside the namespace begins with /..
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

// readNumber reads a limit of a group, or what of it is in use: a number, or "max" for
// no limit.
func readNumber(file string) (int64, error) {
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
