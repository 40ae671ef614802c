package lab

import (
	"errors"
	"io/fs"
	"os"

	"github.com/myriad-go/myriad/internal/cgroup"
	"github.com/myriad-go/myriad/internal/procfs"
)

// memoryRoom is memory that can still be had, in bytes.
type memoryRoom struct {
	// free is what there is, total what there is of it in all.
	free, total int64
	// of is the limit of a cgroup that leaves the least, such as "cgroup /a
	// memory.max", and "" where that is the machine.
	of string
}

// keptShare is the part of the memory that is left free.
const keptShare = 20

// kept is how much of the memory is to stay free, in bytes: least at the least.
func (r memoryRoom) kept(least int64) int64 { return max(least, r.total/keptShare) }

// in says where it is: nothing for the machine.
func (r memoryRoom) in() string {
	if r.of == "" {
		return ""
	}
	return " in " + r.of
}

// readRoom reads what can be had on this machine by processes of this one's cgroups,
// as those are that it starts.
func readRoom() (memoryRoom, error) {
	m, err := procfs.ReadMeminfo()
	if err != nil {
		return memoryRoom{}, err
	}
	c, err := cgroup.Read(os.Getpid())
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without cgroups
		return memoryRoom{}, err
	}
	return roomOf(m, c.Memory), nil
}

// roomOf is what a machine and a limit of cgroups leave, the zero one being none. Of the
// machine it is what nothing uses, and half of the pages of files that can be dropped.
// MemAvailable would have much of what sockets hold in it.
func roomOf(m procfs.Meminfo, c cgroup.Limit) memoryRoom {
	r := memoryRoom{free: m.Free + m.FilePages/2, total: m.Total}
	if c.From == "" {
		return r
	}
	r.total = min(r.total, c.Max)
	if left := max(c.Max-c.Used, 0); left < r.free {
		r.free, r.of = left, c.From
	}
	return r
}
