package tune

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	limits "github.com/myriad-go/myriad/internal/cgroup"
)

// group is a cgroup with a memory limit, to see how a process behaves under one. That
// takes root, and cgroups that may be written.
type group struct {
	dir string
	// Name is what it is called in /proc/PID/cgroup, "/a/b".
	Name string
}

// place is where a group can be made, and what its limit is called.
type place struct{ mount, parent, limit string }

// newGroup makes a group with a memory limit in bytes below this process's own or,
// where that can't be (under version 2 a group with processes can't limit others
// below), at the top. The caller removes it.
func newGroup(limit int64) (*group, error) {
	one, two, err := limits.Groups()
	if err != nil {
		return nil, fmt.Errorf("cgroup: %w", err)
	}
	var places []place
	if one != "" {
		places = append(places, place{"/sys/fs/cgroup/memory", one, "memory.limit_in_bytes"},
			place{"/sys/fs/cgroup/memory", "/", "memory.limit_in_bytes"})
	}
	if two != "" {
		places = append(places, place{"/sys/fs/cgroup", two, "memory.max"}, place{"/sys/fs/cgroup", "/", "memory.max"})
	}
	var failed []error
	for _, p := range places {
		g, err := p.make(limit)
		if err == nil {
			return g, nil
		}
		failed = append(failed, err)
	}
	return nil, fmt.Errorf("cgroup: no group with a memory limit can be made: %w", errors.Join(failed...))
}

func (p place) make(limit int64) (*group, error) {
	name := filepath.Join(p.parent, "myriad-"+strconv.Itoa(os.Getpid()))
	g := &group{dir: filepath.Join(p.mount, name), Name: name}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return nil, err
	}
	if err := g.write(p.limit, limit); err != nil {
		return nil, errors.Join(err, g.Remove())
	}
	return g, nil
}

// write writes a number to one of the group's files, which the kernel has made.
func (g *group) write(file string, n int64) error {
	f, err := os.OpenFile(filepath.Join(g.dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(strconv.FormatInt(n, 10))
	return errors.Join(err, f.Close())
}

// Add moves a process into the group. What memory it has already stays counted
// where it was.
func (g *group) Add(pid int) error { return g.write("cgroup.procs", int64(pid)) }

// Remove removes the group; its processes must have ended.
func (g *group) Remove() error { return os.Remove(g.dir) }
