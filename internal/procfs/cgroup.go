package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// MemoryLimit is how much memory, in bytes, this process may use, and what says
// so: the least of the limits of its cgroups, of the machine's memory and of Go's
// own limit. from is such as "cgroup /a/b memory.max", "the machine's memory" or
// "GOMEMLIMIT". Where there is none, limit is math.MaxInt64 and from is "none
// known"; elsewhere than on Linux only Go's own limit is known. What it reads
// takes some tens of microseconds; limits can change while a process runs.
func MemoryLimit() (limit int64, from string) {
	limit, from = memoryLimit("")
	if own := debug.SetMemoryLimit(-1); own < limit {
		return own, "GOMEMLIMIT"
	}
	return limit, from
}

// memoryLimit is MemoryLimit without Go's own, with files below root.
func memoryLimit(root string) (limit int64, from string) {
	limit, from = math.MaxInt64, "none known"
	lower := func(to int64, by string) {
		if to > 0 && to < limit {
			limit, from = to, by
		}
	}
	if g, err := readGroups(root, "self"); err == nil {
		for _, place := range memoryPlaces(root, g) {
			eachLimit(place.mount, place.group, lower, place.limits...)
		}
	}
	if b, err := readFile(root + "/proc/meminfo"); err == nil {
		if m, err := parseMeminfo(b); err == nil {
			lower(m.Total, "the machine's memory")
		}
	}
	return limit, from
}

// eachLimit calls lower for each of the files that there is in a group and in
// those above it.
func eachLimit(mount, group string, lower func(limit int64, from string), files ...string) {
	eachGroup(mount, group, func(dir, group string) {
		for _, file := range files {
			if n, err := readLimit(path.Join(dir, file)); err == nil {
				lower(n, "cgroup "+group+" "+file)
			}
		}
	})
}

// eachGroup calls do with a group and those above it, up to the mount. In a
// container without a namespace of its own for cgroups the group's path is the
// host's, which is not below the mount; the container's limit is then found at the
// mount itself, as what the walk ends at. The empty group is none.
func eachGroup(mount, group string, do func(dir, group string)) {
	for group != "" {
		do(path.Join(mount, group), group)
		if group == "/" {
			return
		}
		group = path.Dir(group)
	}
}

// ReadCgroups returns the cgroup that limits this process's memory under version
// 1 of cgroups, and the one that it is in under version 2, as paths below where
// each is mounted, such as "/a/b", and "" for none.
func ReadCgroups() (one, two string, err error) {
	g, err := readGroups("", "self")
	return g.memory, g.unified, err
}

// groups are the cgroups of a process, "" for none: those that limit its memory and
// its tasks under version 1, and the one under version 2.
type groups struct{ memory, pids, unified string }

// readGroups reads the cgroups of a process, its number or "self".
func readGroups(root, process string) (groups, error) {
	b, err := readFile(root + "/proc/" + process + "/cgroup")
	if err != nil {
		return groups{}, err
	}
	return parseGroups(b), nil
}

// parseGroups parses /proc/PID/cgroup, whose lines are like "4:cpu,memory:/a/b",
// and for version 2 "0::/a/b".
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

// readLimit reads a limit of a cgroup, or what of it is in use.
func readLimit(file string) (int64, error) {
	b, err := readFile(file)
	if err != nil {
		return 0, err
	}
	return parseLimit(b)
}

// parseLimit parses a limit of a cgroup: bytes, or "max" for none. Version 1 has
// no such word: there none is a number that no machine reaches.
func parseLimit(b []byte) (int64, error) {
	text := strings.TrimSpace(string(b))
	if text == "max" {
		return math.MaxInt64, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("procfs: cgroup limit: %w", err)
	}
	if n < 0 {
		return 0, errors.New("procfs: cgroup limit: negative")
	}
	return n, nil
}
