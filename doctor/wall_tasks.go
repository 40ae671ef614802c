package doctor

import (
	"fmt"
	"strconv"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file has the walls of threads and processes. Connections have none of their
// own; loops have one each, and there are more loops where each needs a descriptor
// table of its own.

const kernelPage = "https://docs.kernel.org/admin-guide/sysctl/kernel.html"

// runtimeThreads is how many threads a Go program has beside one for each
// processor and each loop.
const runtimeThreads = 8

// loops is how many loops there are for so many connections, on all sides and in
// all processes.
func (x *exam) loops(connections int64) int64 {
	sum := int64(0)
	for i := range x.ends {
		sum = satAdd(sum, satMul(int64(x.ends[i].processes), x.loopsOf(&x.ends[i], connections)))
	}
	return sum
}

// loopsOf is how many loops a process of a side has for its share.
func (x *exam) loopsOf(e *end, connections int64) int64 {
	limit, each := x.f.Process.Nofile.Hard, e.share(connections)
	switch {
	case !e.loops:
		return 0
	case limit < 0 || x.f.Shards != "" || each <= satSub(limit, sock.Reserve):
		return int64(e.wanted)
	}
	loops, _ := sock.Tables(uint64(limit), int(each), e.wanted, maxLoops)
	if loops == 0 {
		return maxLoops // and still not enough; nofile says so
	}
	return int64(loops)
}

// tasks is how many threads there are for so many connections.
func (x *exam) tasks(connections int64) int64 {
	return satAdd(x.loops(connections), satMul(x.processes(), runtimeThreads+int64(max(x.f.Machine.CPUs, 1))))
}

// ofTasks fills in a wall of which the limit is of threads, used of which are there.
func (x *exam) ofTasks(w *Wall, limit, used int64) *Wall {
	w.Present = fmt.Sprintf("%s, %s used", format.Count(limit), format.Count(used))
	w.Used, w.Limit, w.Unit = used, limit, "tasks"
	w.Effect = "EAGAIN, \"resource temporarily unavailable\", from clone(2): a Go program that can't have a thread ends"
	room := satSub(limit, used)
	w.Holds = largestFit(func(n int64) bool { return x.tasks(n) <= room })
	if x.near(w) {
		w.Needs = format.Count(x.tasksNeeded(used))
	}
	return w
}

func (x *exam) tasksNeeded(used int64) int64 {
	return satAdd(max(used, 0), x.tasks(int64(x.p.Connections)))
}

var _ = wall((*exam).cgroupPids)

// cgroupPids is the limit of the control group.
func (x *exam) cgroupPids() *Wall {
	c := x.f.Cgroup
	if c.Pids <= 0 {
		return nil
	}
	w := x.ofTasks(&Wall{
		Name: "cgroup-pids", What: "threads and processes of the control group (pids.max)",
		Source: "https://docs.kernel.org/admin-guide/cgroup-v2.html#pid",
	}, c.Pids, c.PidsUsed)
	w.Of = c.PidsFrom
	switch {
	case !x.near(w):
	case c.PidsFile != "":
		w.Changes = []Change{cgroupChange(c.PidsFile, c.Pids, withHeadroom(x.tasksNeeded(c.PidsUsed)))}
	default:
		w.Advice = fmt.Sprintf("have who made the control group allow %s: pids.max, TasksMax in a systemd unit, --pids-limit of a container", w.Needs)
		if c.PidsFrom != "" {
			w.Advice += "; it is set in " + c.PidsFrom
		}
	}
	return w
}

var _ = wall((*exam).userTasks)

// userTasks is RLIMIT_NPROC, which root and those with some rights need not keep to.
func (x *exam) userTasks() *Wall {
	limit := x.f.Process.Nproc.Soft
	if limit < 0 || x.f.Process.User == 0 || x.f.Process.Root || x.f.Process.Raise {
		return nil
	}
	w := x.ofTasks(&Wall{
		Name: "nproc", What: "threads and processes of this user (RLIMIT_NPROC)",
		Source: "https://man7.org/linux/man-pages/man2/getrlimit.2.html",
	}, limit, int64(x.f.Process.UserTasks))
	if x.near(w) {
		w.Advice = fmt.Sprintf("raise it to %s where the user's session or unit is set up: limits.conf, LimitNPROC", w.Needs)
	}
	return w
}

var _ = wall((*exam).threads, setting{name: "kernel.threads-max", amount: true, least: "1024"})

// threads is how many the whole machine may have.
func (x *exam) threads() *Wall {
	return x.settingOfTasks("kernel.threads-max", Wall{
		Name: "threads-max", What: "threads of the whole machine (kernel.threads-max)", Source: kernelPage + "#threads-max",
	})
}

var _ = wall((*exam).pids, setting{name: "kernel.pid_max", amount: true, least: "32768"})

// pids is how many numbers there are for them.
func (x *exam) pids() *Wall {
	return x.settingOfTasks("kernel.pid_max", Wall{
		Name: "pid_max", What: "numbers for threads and processes (kernel.pid_max)", Source: kernelPage + "#pid-max",
	})
}

func (x *exam) settingOfTasks(name string, w Wall) *Wall {
	limit, ok := x.number(name)
	if !ok {
		return nil
	}
	used := x.f.Tasks
	x.ofTasks(&w, limit, used)
	if x.near(&w) {
		w.Changes = []Change{x.sysctl(name, strconv.FormatInt(withHeadroom(x.tasksNeeded(used)), 10))}
	}
	return &w
}

// A process has some maps of memory, and for each loop those of a stack, a ring and
// buffers.
const (
	baseMaps = 256
	loopMaps = 8
)

var _ = wall((*exam).maps, setting{name: "vm.max_map_count", amount: true, least: "65530"})

// maps is how many a process may have.
func (x *exam) maps() *Wall {
	const name = "vm.max_map_count"
	limit, ok := x.number(name)
	if !ok {
		return nil
	}
	w := &Wall{
		Name: "max_map_count", What: "maps of a process's memory (" + name + ")",
		Present: format.Count(limit),
		Effect:  "ENOMEM from mmap(2): a Go program ends",
		Source:  "https://docs.kernel.org/admin-guide/sysctl/vm.html#max-map-count",
	}
	for i := range x.ends {
		e := &x.ends[i]
		x.least(w, e.side, largestFit(func(n int64) bool { return baseMaps+loopMaps*x.loopsOf(e, n) <= limit }))
	}
	if x.near(w) {
		need := baseMaps + loopMaps*int64(maxLoops)
		w.Needs = format.Count(need)
		w.Changes = []Change{x.sysctl(name, strconv.FormatInt(withHeadroom(need), 10))}
	}
	return w
}
