package doctor

import (
	"cmp"
	"fmt"
	"strconv"

	uringmodel "github.com/myriad-go/myriad/internal/engine/uring"
	"github.com/myriad-go/myriad/internal/format"
)

// A connection needs kernel objects for its socket on each local side, and process memory.

// kernelObject describes a kind of kernel object that a socket needs. Facts.Caches contains the sizes of objects by the
// names of their caches in the kernel. If it does not contain the field cache, the object's size is the field bytes.
// That size includes slab overhead and was measured on Linux 6.18.
type kernelObject struct {
	cache    string
	bytes    float64
	isNeeded func(*localEndpoint) bool
}

var socketObjects = []kernelObject{
	{"TCP", 2520, always},
	{"sock_inode_cache", 863, always},
	{"dentry", 197, always},
	{"filp", 195, always},
	{"", 123, always}, // small objects of general caches
	{"", 208, func(e *localEndpoint) bool { return e.model != uring }}, // an epoll watch: eventpoll_epi, eventpoll_pwq
	{"", 288, func(e *localEndpoint) bool { return e.model == uring }}, // an armed poll request
	{"tcp_bind_bucket", 129, func(e *localEndpoint) bool { return e.side == Client }},
}

func always(*localEndpoint) bool { return true }

func (x *analysis) slabCacheName(o kernelObject) string {
	if o.cache == "TCP" && !isIPv4(x.p.Targets[0].Addr()) && x.f.Caches["TCPv6"] > 0 {
		return "TCPv6"
	}
	return o.cache
}

const (
	// loopConn is the process memory in bytes of an idle connection on a loop, goroutineConn of one with a goroutine.
	loopConn      = 113
	goroutineConn = 3800
	// processBase is the memory of a process without connections. epollBase and uringBase are the memory of one loop.
	processBase = 3_500_000
	epollBase   = 100_000
	uringBase   = 340_000
	// chargedShare is the share of kernel memory, in thousandths, that is charged to a control group.
	chargedShare = 943
)

// kernelBytesPerConn returns the kernel memory, in bytes, that one connection takes on this machine. If both ends of
// the connection are on this machine, the result includes both.
func (x *analysis) kernelBytesPerConn() int64 {
	sum := 0.0
	for i := range x.endpoints {
		for _, o := range socketObjects {
			if !o.isNeeded(&x.endpoints[i]) {
				continue
			}
			if size := x.f.Caches[x.slabCacheName(o)]; o.cache != "" && size > 0 && size < 1<<20 {
				sum += size
			} else {
				sum += o.bytes
			}
		}
	}
	if x.p.Unread > 0 {
		sum += float64(kernelBytesForUnread(x.p.Unread))
	}
	return int64(sum + 0.5)
}

// userBytesPerConn returns the process memory, in bytes, that one connection takes on this machine. If both ends of the
// connection are on this machine, the result includes both.
func (x *analysis) userBytesPerConn() int64 {
	sum := int64(0)
	for i := range x.endpoints {
		sum += x.userBytesPerConnOnEndpoint(&x.endpoints[i])
	}
	return sum
}

func (x *analysis) userBytesPerConnOnEndpoint(e *localEndpoint) int64 {
	switch {
	case x.p.UserMemory > 0:
		return int64(x.p.UserMemory)
	case e.hasLoops:
		return loopConn
	}
	return goroutineConn
}

func (x *analysis) baseBytesOfAllProcesses() int64 {
	sum := saturatingMul(x.countProcessesOfPlan(), processBase)
	for i := range x.endpoints {
		e, loop := &x.endpoints[i], int64(epollBase)
		if e.model == uring {
			loop = uringBase
		}
		sum = saturatingAdd(sum, saturatingMul(int64(e.processes)*x.loopsPerProcess(e, x.n), loop))
	}
	return sum
}

// availableMemoryMinusKernelReserve returns the memory, in bytes, that is available for connections. It excludes memory
// that the kernel reserves for itself.
func (x *analysis) availableMemoryMinusKernelReserve() int64 {
	m := x.f.Meminfo
	kept, _ := x.sysctlNumber("vm.min_free_kbytes")
	return subtractDownToZero(saturatingAdd(m.Free, max(m.FilePages, 0)/2), saturatingAdd(saturatingMul(kept, 2<<10), m.Total/64))
}

var _ = registerWall(Wall{
	Name: "memory", What: "unused memory (MemFree and half of the file pages)",
	Effect: "the kernel's OOM killer ends a process, most likely the server",
	Source: "https://docs.kernel.org/filesystems/proc.html#meminfo", Unit: "bytes", Beyond: true,
}, func(x *analysis, w *Wall) bool {
	m := x.f.Meminfo
	w.Present = fmt.Sprintf("%s free of %s", formatBytes(m.Free), formatBytes(m.Total))
	// MemAvailable would count memory of open sockets as free.
	w.Used, w.Limit = subtractDownToZero(m.Total, saturatingAdd(m.Free, m.FilePages)), m.Total
	x.fillMemoryWall(w, x.availableMemoryMinusKernelReserve(), saturatingAdd(x.kernelBytesPerConn(), x.userBytesPerConn()))
	return m.Total > 0
}, sysctlInfo{name: "vm.min_free_kbytes"})

var _ = registerWall(Wall{
	Name: "cgroup-memory", What: "memory of the control group",
	Effect: "the kernel's OOM killer ends a process of the group (memory.events, memory.failcnt)",
	Source: "https://docs.kernel.org/admin-guide/cgroup-v2.html#memory", Unit: "bytes", Beyond: true,
}, func(x *analysis, w *Wall) bool {
	c := x.f.Cgroup.Memory
	w.Present = fmt.Sprintf("%s, %s used", formatBytes(c.Max), formatBytes(c.Used))
	w.Used, w.Limit, w.Of = c.Used, c.Max, c.From
	if c.From != "" {
		w.Present += " (" + c.From + ")"
	}
	x.fillMemoryWall(w, subtractDownToZero(c.Max, c.Used), x.cgroupBytesPerConn())
	to := addEighthAndRoundUp(saturatingAdd(max(c.Used, 0), x.memoryNeededByPlan(x.cgroupBytesPerConn())))
	if x.isExceededByPlan(w) && c.File != "" && to <= x.f.Meminfo.Total {
		w.Changes, w.Advice = []Change{c.changeLimitTo(to)}, ""
	}
	return c.Max > 0
})

func (c *CgroupLimit) changeLimitTo(newLimit int64) Change {
	return Change{Kind: Cgroup, Name: c.File, From: strconv.FormatInt(c.Max, 10), To: strconv.FormatInt(newLimit, 10)}
}

// cgroupBytesPerConn returns how many bytes a connection adds to the memory usage of a control group.
func (x *analysis) cgroupBytesPerConn() int64 {
	return saturatingAdd(saturatingMulDiv(x.kernelBytesPerConn(), chargedShare, 1000), x.userBytesPerConn())
}

func (x *analysis) memoryNeededByPlan(bytesPerConn int64) int64 {
	return saturatingAdd(x.baseBytesOfAllProcesses(), saturatingMul(bytesPerConn, x.n))
}

func (x *analysis) fillMemoryWall(w *Wall, available, bytesPerConn int64) {
	w.Holds = subtractDownToZero(available, x.baseBytesOfAllProcesses()) / bytesPerConn
	w.What += fmt.Sprintf(": %s bytes for a connection", format.Count(bytesPerConn))
	if !x.isExceededByPlan(w) {
		return
	}
	need := x.memoryNeededByPlan(bytesPerConn)
	w.Needs = formatBytesRoundedUp(need)
	w.Advice = fmt.Sprintf("add %s, or hold at most %s connections", formatBytesRoundedUp(subtractDownToZero(need, available)), format.Count(w.Holds))
	if x.userBytesPerConn() >= goroutineConn && x.p.UserMemory == 0 {
		w.Advice += "; a model with loops takes " + format.Count(goroutineConn-loopConn) + " bytes less for each on a side"
	}
}

var _ = registerWall(Wall{
	Name: "GOMEMLIMIT", Soft: true, What: "memory limit of Go's runtime",
	Effect: "the garbage collector uses up to half of the processors to stay within it",
	Source: "https://go.dev/doc/gc-guide#Memory_limit",
}, func(x *analysis, w *Wall) bool {
	limit, need := x.f.Process.GoMemoryLimit, int64(0)
	if limit <= 0 {
		return false
	}
	w.Present = formatBytes(limit)
	for _, e := range x.endpoints {
		each := x.userBytesPerConnOnEndpoint(&e)
		x.keepLowerAllowedConns(w, e.side, saturatingMul(int64(e.processes), subtractDownToZero(limit, processBase)/each))
		need = max(need, saturatingAdd(processBase, saturatingMul(each, ceilDiv(x.n, int64(e.processes)))))
	}
	if x.isExceededByPlan(w) {
		w.Needs = formatBytesRoundedUp(need)
		w.Advice = fmt.Sprintf("start it with GOMEMLIMIT=%dMiB or without a limit", ceilDiv(addEighthAndRoundUp(need), 1<<20))
	}
	return true
})

var _ = registerWall(Wall{
	Name: "numa", Soft: true, What: "NUMA nodes",
	Effect: "a loop whose connections are in another node's memory is slower; run a server per node, bound with numactl(8)",
	Source: "https://man7.org/linux/man-pages/man7/numa.7.html",
}, func(x *analysis, w *Wall) bool {
	w.Present = fmt.Sprint(x.f.Nodes)
	return x.f.Nodes > 1
})

var _ = registerWall(Wall{
	Name: "io_uring", What: "io_uring",
	Effect: "--model uring fails at the start; auto takes epoll",
	Source: kernelPage + "#io-uring-disabled",
}, func(x *analysis, w *Wall) bool {
	w.Present = cmp.Or(x.f.Uring, "can be used")
	if x.f.Uring != "" && x.p.Model == uring {
		w.Holds, w.Needs = 0, "to be allowed"
		w.Advice = "use --model epoll; or allow it: kernel.io_uring_disabled=0, and a seccomp profile that allows io_uring_setup, " +
			"io_uring_enter and io_uring_register"
	}
	return true
}, sysctlInfo{name: "kernel.io_uring_disabled", defaultValue: "0"})

var _ = registerWall(Wall{
	Name: "memlock", What: "memory that a user may lock (RLIMIT_MEMLOCK)",
	Effect: "ENOMEM, \"cannot allocate memory\", from io_uring_setup(2): --model uring fails at the start; auto takes epoll",
	Source: "https://man7.org/linux/man-pages/man2/io_uring_setup.2.html",
}, (*analysis).examineMemlock)

// examineMemlock sets w.Holds to the number of connections that RLIMIT_MEMLOCK allows, and adds a change or advice if
// that is not enough. applies is false if the limit is unknown or does not apply to the process.
func (x *analysis) examineMemlock(w *Wall) (applies bool) {
	limit := x.f.Process.Memlock
	if limit.Hard < 0 || x.f.Process.Locks || x.f.Process.Nofile.Hard == 0 { // if Nofile is unknown, so is Memlock
		return false
	}
	w.Present = fmt.Sprintf("%s bytes", formatLimitOrNone(limit.Soft))
	if limit.Soft >= 0 {
		w.Present += fmt.Sprintf(", enough for %s loops on io_uring", format.Count(max(limit.Soft/x.lockedBytesPerRing()-1, 0)))
	}
	w.Holds = largestFittingConns(func(n int64) bool { return limit.Soft < 0 || x.bytesLockedByRings(n) <= limit.Soft })
	if !x.isExceededByPlan(w) {
		return true
	}
	need := x.bytesLockedByRings(x.n)
	w.Needs = format.Count(need) + " bytes"
	if to := addEighthAndRoundUp(need); to <= limit.Hard || x.f.Process.Raise {
		w.Changes = []Change{{Kind: Memlock, Name: "memlock", From: strconv.FormatInt(limit.Soft, 10), To: strconv.FormatInt(to, 10)}}
	} else {
		w.Advice = fmt.Sprintf("run fewer loops, or use --model epoll; or raise the limit to %d bytes where the user's session or unit is set up: limits.conf, LimitMEMLOCK", need)
	}
	return true
}

func (x *analysis) lockedBytesPerRing() int64 { return uringmodel.LockedMemoryPerLoop(x.pageSize()) }

// bytesLockedByRings returns the number of bytes that io_uring rings lock for the given number of connections. It
// counts only endpoints for which the plan requires io_uring, because other endpoints can use epoll instead.
func (x *analysis) bytesLockedByRings(connections int64) int64 {
	sum := int64(0)
	for i := range x.endpoints {
		e := &x.endpoints[i]
		if e.model == uring && e.explicit {
			sum += int64(e.processes) * (1 + x.loopsPerProcess(e, connections)) * x.lockedBytesPerRing()
		}
	}
	return sum
}

func formatBytes(n int64) string { return format.Bytes(float64(n)) }

func formatBytesRoundedUp(n int64) string { return format.Bytes(float64(n) * 1.005) }
