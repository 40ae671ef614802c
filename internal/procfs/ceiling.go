package procfs

import (
	"bytes"
	"fmt"
	"path"
	"strconv"
	"strings"
)

// Ceiling is a limit that cgroups set. The zero value is none.
type Ceiling struct {
	// Limit is what the group may have, in bytes or tasks, and Used what it has.
	Limit, Used int64
	// From is what sets it, such as "cgroup /a/b memory.max", and File the path of
	// that file.
	From, File string
}

// Ceilings are the limits of the cgroups that a process is in. Of each that one is
// told that leaves the least room: a group above has what all groups below it have.
type Ceilings struct {
	// Memory is in bytes. Used is without pages of files, which the kernel drops
	// before it refuses any.
	Memory Ceiling
	// SocketMemory limits the buffers of TCP sockets alone, in bytes. Only version
	// 1 of cgroups has it.
	SocketMemory Ceiling
	// Tasks limits processes and threads together.
	Tasks Ceiling
}

// ReadCeilings reads the limits of the cgroups that a process is in. Cgroups that
// are not mounted below /sys/fs/cgroup are not seen.
func ReadCeilings(pid int) (Ceilings, error) { return readCeilings("", strconv.Itoa(pid)) }

func readCeilings(root, process string) (Ceilings, error) {
	g, err := readGroups(root, process)
	if err != nil {
		return Ceilings{}, err
	}
	return Ceilings{
		Memory:       lowest(root, memoryPlaces(root, g)),
		SocketMemory: lowest(root, socketPlaces(root, g)),
		Tasks:        lowest(root, taskPlaces(root, g)),
	}, nil
}

// place is where a kind of limit is found, and by the names of which files.
type place struct {
	mount, group string
	limits       []string
	used         string
	// These lines of memory.stat are counted in used, and can be dropped.
	droppable []string
}

// unifiedMounts are where version 2 is mounted: where both versions are in use, it
// is below.
func unifiedMounts(root string) [2]string {
	return [2]string{root + "/sys/fs/cgroup", root + "/sys/fs/cgroup/unified"}
}

func memoryPlaces(root string, g groups) []place {
	places := []place{{
		root + "/sys/fs/cgroup/memory", g.memory, []string{"memory.limit_in_bytes"}, "memory.usage_in_bytes",
		[]string{"total_inactive_file", "total_active_file"},
	}}
	for _, mount := range unifiedMounts(root) {
		places = append(places, place{
			mount, g.unified, []string{"memory.max", "memory.high"}, "memory.current",
			[]string{"inactive_file", "active_file"},
		})
	}
	return places
}

func socketPlaces(root string, g groups) []place {
	return []place{{root + "/sys/fs/cgroup/memory", g.memory, []string{"memory.kmem.tcp.limit_in_bytes"}, "memory.kmem.tcp.usage_in_bytes", nil}}
}

func taskPlaces(root string, g groups) []place {
	places := []place{{root + "/sys/fs/cgroup/pids", g.pids, []string{"pids.max"}, "pids.current", nil}}
	for _, mount := range unifiedMounts(root) {
		places = append(places, place{mount, g.unified, []string{"pids.max"}, "pids.current", nil})
	}
	return places
}

// noCeiling and more is no limit: version 1 of cgroups writes none as the largest
// number of whole pages.
const noCeiling = 1 << 62

// lowest finds the limit that leaves the least room. Files that are not there, or can't
// be read, set none.
func lowest(root string, places []place) (least Ceiling) {
	for _, p := range places {
		eachGroup(p.mount, p.group, func(dir, group string) {
			for _, file := range p.limits {
				limit, err := readLimit(path.Join(dir, file))
				if err != nil || limit >= noCeiling {
					continue
				}
				c := Ceiling{limit, p.inUse(dir), "cgroup " + group + " " + file, strings.TrimPrefix(path.Join(dir, file), root)}
				if least.File == "" || c.Limit-c.Used < least.Limit-least.Used {
					least = c
				}
			}
		})
	}
	return least
}

// inUse is what a group has without what can be dropped, 0 where that is not told.
func (p *place) inUse(dir string) int64 {
	used, err := readLimit(path.Join(dir, p.used))
	if err != nil || len(p.droppable) == 0 {
		return used
	}
	b, err := readFile(path.Join(dir, "memory.stat"))
	if err != nil {
		return used
	}
	numbers, err := parseStatLines(b, p.droppable)
	if err != nil {
		return used
	}
	for _, n := range numbers {
		used -= min(n, used)
	}
	return used
}

// parseStatLines finds the numbers of lines "name 123" by their names, 0 for one
// that is not there.
func parseStatLines(b []byte, names []string) ([]int64, error) {
	numbers := make([]int64, len(names))
	for line := range bytes.Lines(b) {
		name, digits, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		for i, wanted := range names {
			if name != wanted {
				continue
			}
			n, err := strconv.ParseUint(digits, 10, 63)
			if err != nil {
				return nil, fmt.Errorf("procfs: %s: %w", name, err)
			}
			numbers[i] = int64(n)
		}
	}
	return numbers, nil
}
