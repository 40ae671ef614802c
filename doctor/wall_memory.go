package doctor

import (
	"fmt"
	"strconv"

	"github.com/myriad-go/myriad/internal/format"
)

// This file has the walls of memory. A connection takes the kernel's objects for
// its socket on each side that is on this machine, and the process's own memory.

// object is one of the kernel's for a socket: the cache it is of, its size where
// the facts don't have it, and who needs it. The sizes are what a million sockets
// were measured to take on Linux 6.18, with what slabs waste.
type object struct {
	cache string
	bytes float64
	needs func(*end) bool
}

var objects = []object{
	{"TCP", 2520, always},
	{"sock_inode_cache", 863, always},
	{"dentry", 197, always},
	{"filp", 195, always},
	{"", 123, always},                                        // small ones of general caches
	{"", 208, func(e *end) bool { return e.model != uring }}, // a watch of epoll: eventpoll_epi, eventpoll_pwq
	{"", 288, func(e *end) bool { return e.model == uring }}, // an armed poll
	{"tcp_bind_bucket", 129, func(e *end) bool { return e.side == Client }},
}

func always(*end) bool { return true }

// cacheOf is the cache that an object is of: sockets of IPv6 have one of their own.
func (x *exam) cacheOf(o object) string {
	if o.cache == "TCP" && !is4(x.p.Targets[0].Addr()) && x.f.Caches["TCPv6"] > 0 {
		return "TCPv6"
	}
	return o.cache
}

const (
	// The memory of a process for a connection that is idle: of a slab's
	// entry with what surrounds it, and of a goroutine with its stack.
	loopConn      = 113
	goroutineConn = 3800
	// processBase is what a process takes before the first connection,
	// epollBase and uringBase what a loop does: buffers, a thread's stack, a
	// ring.
	processBase = 3_500_000
	epollBase   = 100_000
	uringBase   = 500_000
	// chargedShare is how much of the kernel's memory, in thousandths, a
	// control group is charged for: objects, without what slabs waste. 3,872
	// bytes for a socket that was accepted and is watched by epoll.
	chargedShare = 943
)

// kernelBytes is what the kernel takes for one connection, on all sides here.
func (x *exam) kernelBytes() int64 {
	sum := 0.0
	for i := range x.ends {
		for _, o := range objects {
			if !o.needs(&x.ends[i]) {
				continue
			}
			if size := x.f.Caches[x.cacheOf(o)]; o.cache != "" && size > 0 && size < 1<<20 {
				sum += size
			} else {
				sum += o.bytes
			}
		}
	}
	if x.p.Unread > 0 {
		sum += float64(counted(x.p.Unread))
	}
	return int64(sum + 0.5)
}

// userBytes is what a process takes for one connection, on all sides here.
func (x *exam) userBytes() int64 {
	sum := int64(0)
	for _, e := range x.ends {
		switch {
		case x.p.UserMemory > 0:
			sum += int64(x.p.UserMemory)
		case e.loops:
			sum += loopConn
		default:
			sum += goroutineConn
		}
	}
	return sum
}

// base is what the processes take before the first connection, with the loops that
// the plan has.
func (x *exam) base() int64 {
	sum := satMul(x.processes(), processBase)
	for i := range x.ends {
		e, loop := &x.ends[i], int64(epollBase)
		if e.model == uring {
			loop = uringBase
		}
		sum = satAdd(sum, satMul(int64(e.processes)*x.loopsOf(e, int64(x.p.Connections)), loop))
	}
	return sum
}

// free is the memory that connections can have: what nothing uses, and half of the
// pages of files, which can be dropped, but for what the kernel keeps. MemAvailable
// misleads: it counts the inodes of sockets among what can be taken back.
func (x *exam) free() int64 {
	m := x.f.Meminfo
	kept, _ := x.number("vm.min_free_kbytes")
	return satSub(satAdd(m.Free, max(m.FilePages, 0)/2), satAdd(satMul(kept, 2<<10), m.Total/64))
}

var _ = wall((*exam).memory, setting{name: "vm.min_free_kbytes"})

// memory is the machine's.
func (x *exam) memory() *Wall {
	if x.f.Meminfo.Total <= 0 {
		return nil
	}
	w := &Wall{
		Name: "memory", What: "memory that nothing uses (MemFree, and half of the pages of files)",
		Present: fmt.Sprintf("%s free of %s", size(x.f.Meminfo.Free), size(x.f.Meminfo.Total)),
		Effect:  "the kernel's OOM killer ends a process, most likely the server",
		Source:  "https://docs.kernel.org/filesystems/proc.html#meminfo",
		// Not what is available: that takes what the kernel keeps of open sockets for free.
		Used: satSub(x.f.Meminfo.Total, satAdd(x.f.Meminfo.Free, x.f.Meminfo.FilePages)), Limit: x.f.Meminfo.Total, Unit: "bytes", Beyond: true,
	}
	x.inMemory(w, x.free(), satAdd(x.kernelBytes(), x.userBytes()))
	return w
}

var _ = wall((*exam).cgroupMemory)

// cgroupMemory is that of the control group, or container.
func (x *exam) cgroupMemory() *Wall {
	c := x.f.Cgroup
	if c.Memory <= 0 {
		return nil
	}
	w := &Wall{
		Name: "cgroup-memory", What: "memory of the control group",
		Present: fmt.Sprintf("%s, %s used", size(c.Memory), size(c.MemoryUsed)),
		Effect:  "the kernel's OOM killer ends a process of the group (memory.events, memory.failcnt)",
		Source:  "https://docs.kernel.org/admin-guide/cgroup-v2.html#memory",
		Used:    c.MemoryUsed, Limit: c.Memory, Unit: "bytes", Of: c.MemoryFrom, Beyond: true,
	}
	if c.MemoryFrom != "" {
		w.Present += " (" + c.MemoryFrom + ")"
	}
	x.inMemory(w, satSub(c.Memory, c.MemoryUsed), x.charged())
	if !x.near(w) {
		return w
	}
	to := withHeadroom(satAdd(max(c.MemoryUsed, 0), x.needed(x.charged())))
	if c.MemoryFile != "" && to <= x.f.Meminfo.Total {
		w.Changes, w.Advice = []Change{cgroupChange(c.MemoryFile, c.Memory, to)}, ""
	}
	return w
}

// charged is what a control group is charged for one connection. Version 1 charges for
// the socket itself, about six tenths of the kernel's memory, only while some group of
// the machine limits memory.kmem.tcp (measured with Linux 6.18): where none does, more
// connections have room.
func (x *exam) charged() int64 {
	return satAdd(mulDiv(x.kernelBytes(), chargedShare, 1000), x.userBytes())
}

// needed is what all connections of the plan take when each takes so many bytes.
func (x *exam) needed(each int64) int64 {
	return satAdd(x.base(), satMul(each, int64(x.p.Connections)))
}

// cgroupChange is the change of a limit of a control group.
func cgroupChange(file string, from, to int64) Change {
	return Change{Kind: Cgroup, Name: file, From: strconv.FormatInt(from, 10), To: strconv.FormatInt(to, 10)}
}

// inMemory fills in how many connections have room in so much memory when each
// takes so many bytes.
func (x *exam) inMemory(w *Wall, room, each int64) {
	w.Holds = satSub(room, x.base()) / each
	w.What += fmt.Sprintf(": %s bytes for a connection", format.Count(each))
	if !x.near(w) {
		return
	}
	need := x.needed(each)
	w.Needs = sizeUp(need)
	w.Advice = fmt.Sprintf("give it %s more, or hold %s connections at most", sizeUp(satSub(need, room)), format.Count(w.Holds))
	if x.userBytes() >= goroutineConn && x.p.UserMemory == 0 {
		w.Advice += "; a model with loops takes " + format.Count(goroutineConn-loopConn) + " bytes less for each on a side"
	}
}

var _ = wall((*exam).goMemory)

// goMemory is Go's own limit: above it the collector runs all the time.
func (x *exam) goMemory() *Wall {
	limit := x.f.Process.GoMemoryLimit
	if limit <= 0 {
		return nil
	}
	// Each process has the limit for itself.
	w := &Wall{
		Name: "GOMEMLIMIT", Soft: true, What: "memory that Go's runtime is to keep to",
		Present: size(limit),
		Effect:  "the garbage collector takes up to half of the processors to keep to it",
		Source:  "https://go.dev/doc/gc-guide#Memory_limit",
	}
	need := int64(0)
	for _, e := range x.ends {
		one := &exam{f: x.f, p: x.p, ends: []end{e}}
		each := one.userBytes()
		x.least(w, e.side, satMul(int64(e.processes), satSub(limit, processBase)/each))
		need = max(need, satAdd(processBase, satMul(each, ceilDiv(int64(x.p.Connections), int64(e.processes)))))
	}
	if x.near(w) {
		w.Needs = sizeUp(need)
		w.Advice = fmt.Sprintf("start it with GOMEMLIMIT=%dMiB, or without", ceilDiv(withHeadroom(need), 1<<20))
	}
	return w
}

var _ = wall((*exam).nodes)

// nodes means that memory is in several places.
func (x *exam) nodes() *Wall {
	if x.f.Nodes <= 1 {
		return nil
	}
	return &Wall{
		Name: "numa", Soft: true, What: "NUMA nodes", Present: fmt.Sprint(x.f.Nodes), Holds: Unlimited,
		Effect: "a loop whose connections are in another node's memory is slower: a server for each node, bound by numactl(8), is not",
		Source: "https://man7.org/linux/man-pages/man7/numa.7.html",
	}
}

// size writes bytes, rounded.
func size(n int64) string { return format.Bytes(float64(n)) }

// sizeUp writes bytes of which so many are needed: never fewer. A size has three digits.
func sizeUp(n int64) string { return format.Bytes(float64(n) * 1.005) }
