package doctor

import (
	"fmt"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/internal/sock"
)

// Each event loop has a thread; connections have none. If each loop needs a separate descriptor table, there are more
// loops.

const (
	kernelPage = "https://docs.kernel.org/admin-guide/sysctl/kernel.html"
	noThread   = "EAGAIN, \"resource temporarily unavailable\", from clone(2): a Go program that can't create a thread exits"

	// runtimeThreads is the number of a Go program's threads besides those for processors and loops.
	runtimeThreads = 8
	// A process has baseMaps memory maps, and loopMaps more per loop.
	baseMaps = 256
	loopMaps = 8
)

// loopsPerProcess returns the number of event loops that each process of the server or client e needs. connections is
// the total number of connections of all these processes.
func (x *analysis) loopsPerProcess(e *localEndpoint, connections int64) int64 {
	limit, each := x.f.Process.Nofile.Hard, e.connsPerProcessWithMargin(connections)
	switch {
	case !e.hasLoops:
		return 0
	case limit < 0 || x.f.Shards != "" || each <= subtractDownToZero(limit, sock.ReservedDescriptors):
		return int64(e.minLoops)
	}
	loops, _ := sock.PlanFewestDescriptorTables(uint64(limit), int(each), e.minLoops, maxLoops)
	if loops == 0 {
		return maxLoops // not even maxLoops is enough; the wall "nofile" reports this
	}
	return int64(loops)
}

func (x *analysis) totalThreads(connections int64) int64 {
	sum := saturatingMul(x.countProcessesOfPlan(), runtimeThreads+int64(max(x.f.Machine.CPUs, 1)))
	for i := range x.endpoints {
		sum = saturatingAdd(sum, saturatingMul(int64(x.endpoints[i].processes), x.loopsPerProcess(&x.endpoints[i], connections)))
	}
	return sum
}

// fillTaskLimitWall sets w.Holds to the number of connections that a limit on threads allows. used is the number of
// threads that already exist. limitNeeded is the value of the limit that the plan needs.
func (x *analysis) fillTaskLimitWall(w *Wall, limit, used int64) (limitNeeded int64) {
	w.setUsedAndLimit(used, limit)
	room := subtractDownToZero(limit, used)
	w.Holds = largestFittingConns(func(n int64) bool { return x.totalThreads(n) <= room })
	limitNeeded = saturatingAdd(max(used, 0), x.totalThreads(x.n))
	if x.isExceededByPlan(w) {
		w.Needs = format.Count(limitNeeded)
	}
	return limitNeeded
}

var _ = registerWall(Wall{
	Name: "cgroup-pids", What: "threads and processes of the control group (pids.max)",
	Effect: noThread, Source: "https://docs.kernel.org/admin-guide/cgroup-v2.html#pid", Unit: "tasks",
}, func(x *analysis, w *Wall) bool {
	c := x.f.Cgroup.Tasks
	need := x.fillTaskLimitWall(w, c.Max, c.Used)
	w.Of = c.From
	switch {
	case !x.isExceededByPlan(w):
	case c.File != "":
		w.Changes = []Change{c.changeLimitTo(addEighthAndRoundUp(need))}
	default:
		w.Advice = fmt.Sprintf("let the owner of the control group allow %s: pids.max, TasksMax in a systemd unit, --pids-limit of a container", w.Needs)
		if c.From != "" {
			w.Advice += "; it is set in " + c.From
		}
	}
	return c.Max > 0
})

var _ = registerWall(Wall{
	Name: "nproc", What: "threads and processes of this user (RLIMIT_NPROC)",
	Effect: noThread, Source: "https://man7.org/linux/man-pages/man2/getrlimit.2.html", Unit: "tasks",
}, func(x *analysis, w *Wall) bool {
	p := x.f.Process
	if p.Nproc.Soft < 0 || p.User == 0 || p.Root || p.Raise {
		return false
	}
	x.fillTaskLimitWall(w, p.Nproc.Soft, int64(p.UserTasks))
	if x.isExceededByPlan(w) {
		w.Advice = fmt.Sprintf("raise it to %s where the user's session or unit is set up: limits.conf, LimitNPROC", w.Needs)
	}
	return true
})

func newTaskSysctlExaminer(name string) func(*analysis, *Wall, int64) bool {
	return func(x *analysis, w *Wall, limit int64) bool {
		x.requireSysctlIfExceeded(w, name, x.fillTaskLimitWall(w, limit, x.f.Tasks))
		return true
	}
}

var _ = registerSysctlWall(Wall{
	Name: "threads-max", What: "threads of the whole machine (kernel.threads-max)",
	Effect: noThread, Source: kernelPage + "#threads-max", Unit: "tasks",
}, sysctlInfo{name: "kernel.threads-max", isAmount: true, defaultValue: "1024"}, newTaskSysctlExaminer("kernel.threads-max"))

var _ = registerSysctlWall(Wall{
	Name: "pid_max", What: "numbers for threads and processes (kernel.pid_max)",
	Effect: noThread, Source: kernelPage + "#pid-max", Unit: "tasks",
}, sysctlInfo{name: "kernel.pid_max", isAmount: true, defaultValue: "32768"}, newTaskSysctlExaminer("kernel.pid_max"))

var _ = registerSysctlWall(Wall{
	Name: "max_map_count", What: "maps of a process's memory (vm.max_map_count)",
	Effect: "ENOMEM from mmap(2): a Go program exits",
	Source: "https://docs.kernel.org/admin-guide/sysctl/vm.html#max-map-count",
}, sysctlInfo{name: "vm.max_map_count", isAmount: true, defaultValue: "65530"}, func(x *analysis, w *Wall, limit int64) bool {
	w.Present = format.Count(limit)
	for i := range x.endpoints {
		e := &x.endpoints[i]
		x.keepLowerAllowedConns(w, e.side, largestFittingConns(func(n int64) bool { return baseMaps+loopMaps*x.loopsPerProcess(e, n) <= limit }))
	}
	x.requireSysctlIfExceeded(w, "vm.max_map_count", baseMaps+loopMaps*int64(maxLoops))
	return true
})
