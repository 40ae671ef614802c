package doctor

import (
	"fmt"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file has the walls of threads and processes. Connections have none of their
// own; loops have one each, and there are more loops where each needs a descriptor
// table of its own.

const (
	kernelPage = "https://docs.kernel.org/admin-guide/sysctl/kernel.html"
	noThread   = "EAGAIN, \"resource temporarily unavailable\", from clone(2): a Go program that can't have a thread ends"

	// runtimeThreads is how many threads a Go program has beside one for each
	// processor and each loop.
	runtimeThreads = 8
	// A process has some maps of memory, and for each loop those of a stack, a ring and
	// buffers.
	baseMaps = 256
	loopMaps = 8
)

// loopsOf is how many loops a process of a side has for its share.
func (x *exam) loopsOf(e *end, connections int64) int64 {
	limit, each := x.f.Process.Nofile.Hard, e.share(connections)
	switch {
	case !e.loops:
		return 0
	case limit < 0 || x.f.Shards != "" || each <= satSub(limit, sock.ReservedDescriptors):
		return int64(e.wanted)
	}
	loops, _ := sock.PlanTables(uint64(limit), int(each), e.wanted, maxLoops)
	if loops == 0 {
		return maxLoops // and still not enough; nofile says so
	}
	return int64(loops)
}

// tasks is how many threads there are for so many connections, on all sides and in all
// processes.
func (x *exam) tasks(connections int64) int64 {
	sum := satMul(x.processes(), runtimeThreads+int64(max(x.f.Machine.CPUs, 1)))
	for i := range x.ends {
		sum = satAdd(sum, satMul(int64(x.ends[i].processes), x.loopsOf(&x.ends[i], connections)))
	}
	return sum
}

// ofTasks fills in a wall of which the limit is of threads, used of which are there. need
// is what the plan needs.
func (x *exam) ofTasks(w *Wall, limit, used int64) (need int64) {
	w.use(used, limit)
	room := satSub(limit, used)
	w.Holds = largestFit(func(n int64) bool { return x.tasks(n) <= room })
	need = satAdd(max(used, 0), x.tasks(x.n))
	if x.exceeded(w) {
		w.Needs = format.Count(need)
	}
	return need
}

var _ = wall(Wall{
	Name: "cgroup-pids", What: "threads and processes of the control group (pids.max)",
	Effect: noThread, Source: "https://docs.kernel.org/admin-guide/cgroup-v2.html#pid", Unit: "tasks",
}, func(x *exam, w *Wall) bool {
	c := x.f.Cgroup.Tasks
	need := x.ofTasks(w, c.Max, c.Used)
	w.Of = c.From
	switch {
	case !x.exceeded(w):
	case c.File != "":
		w.Changes = []Change{c.to(withHeadroom(need))}
	default:
		w.Advice = fmt.Sprintf("have who made the control group allow %s: pids.max, TasksMax in a systemd unit, --pids-limit of a container", w.Needs)
		if c.From != "" {
			w.Advice += "; it is set in " + c.From
		}
	}
	return c.Max > 0
})

// Root and those with some rights need not keep to RLIMIT_NPROC.
var _ = wall(Wall{
	Name: "nproc", What: "threads and processes of this user (RLIMIT_NPROC)",
	Effect: noThread, Source: "https://man7.org/linux/man-pages/man2/getrlimit.2.html", Unit: "tasks",
}, func(x *exam, w *Wall) bool {
	p := x.f.Process
	if p.Nproc.Soft < 0 || p.User == 0 || p.Root || p.Raise {
		return false
	}
	x.ofTasks(w, p.Nproc.Soft, int64(p.UserTasks))
	if x.exceeded(w) {
		w.Advice = fmt.Sprintf("raise it to %s where the user's session or unit is set up: limits.conf, LimitNPROC", w.Needs)
	}
	return true
})

// taskSetting has a setting of the whole machine be a wall of threads.
func taskSetting(name string) func(*exam, *Wall, int64) bool {
	return func(x *exam, w *Wall, limit int64) bool {
		x.raise(w, name, x.ofTasks(w, limit, x.f.Tasks))
		return true
	}
}

var _ = settingWall(Wall{
	Name: "threads-max", What: "threads of the whole machine (kernel.threads-max)",
	Effect: noThread, Source: kernelPage + "#threads-max", Unit: "tasks",
}, setting{name: "kernel.threads-max", amount: true, least: "1024"}, taskSetting("kernel.threads-max"))

var _ = settingWall(Wall{
	Name: "pid_max", What: "numbers for threads and processes (kernel.pid_max)",
	Effect: noThread, Source: kernelPage + "#pid-max", Unit: "tasks",
}, setting{name: "kernel.pid_max", amount: true, least: "32768"}, taskSetting("kernel.pid_max"))

var _ = settingWall(Wall{
	Name: "max_map_count", What: "maps of a process's memory (vm.max_map_count)",
	Effect: "ENOMEM from mmap(2): a Go program ends",
	Source: "https://docs.kernel.org/admin-guide/sysctl/vm.html#max-map-count",
}, setting{name: "vm.max_map_count", amount: true, least: "65530"}, func(x *exam, w *Wall, limit int64) bool {
	w.Present = format.Count(limit)
	for i := range x.ends {
		e := &x.ends[i]
		x.least(w, e.side, largestFit(func(n int64) bool { return baseMaps+loopMaps*x.loopsOf(e, n) <= limit }))
	}
	x.raise(w, "vm.max_map_count", baseMaps+loopMaps*int64(maxLoops))
	return true
})
