package doctor

import (
	"fmt"

	"github.com/myriad-go/myriad/internal/format"
)

// This file has the walls of the memory in which the kernel keeps bytes that have
// come and were not read, or that were written and not sent. An idle connection
// has none.

const (
	tcpMemName = "net.ipv4.tcp_mem"
	// segment is how many bytes come in one packet at most over loopback, and
	// segmentCost what the kernel counts for it beside them: measured on Linux
	// 6.18.
	segment     = 32_741
	segmentCost = 832
)

// counted is how much the kernel counts for so many unread bytes.
func counted(unread int) int64 {
	return int64(unread) + segmentCost*ceilDiv(int64(unread), segment)
}

// unreadPages is how many pages that is for each connection, whole ones: one
// unread byte is one page.
func (x *exam) unreadPages() int64 { return ceilDiv(counted(x.p.Unread), x.page()) }

// page is the size of the machine's pages.
func (x *exam) page() int64 {
	if x.f.PageSize <= 0 {
		return 4096
	}
	return x.f.PageSize
}

// wholePages rounds bytes up.
func (x *exam) wholePages(bytes int64) int64 { return satMul(ceilDiv(bytes, x.page()), x.page()) }

// refusable is unreadPages where a limit can refuse any of it, otherwise 0: the
// first segment of a connection is let in whatever the limit says.
func (x *exam) refusable() int64 {
	if x.p.Unread <= segment {
		return 0
	}
	return x.unreadPages()
}

var _ = wall(Wall{
	Name: "tcp_mem", What: "memory of all TCP buffers of the machine (" + tcpMemName + ", third)",
	Effect: "what comes after a connection's first segment is dropped and sent again until somebody reads (TcpExtTCPRcvQDrop, PruneCalled; " +
		"\"TCP: out of memory -- consider tuning tcp_mem\" in the kernel's log): writes wait, or fail with EAGAIN",
	Source: ipPage + "#tcp-variables", Unit: "bytes", Beyond: true,
}, func(x *exam, w *Wall) bool { return x.tcpMem(w, 2, x.refusable()) },
	setting{name: tcpMemName, amount: true, machineWide: true, least: "64 128 256"})

var _ = wall(Wall{
	Name: "tcp_mem-pressure", Soft: true, What: "memory of TCP buffers from which on they no longer grow (" + tcpMemName + ", second)",
	Effect: "buffers shrink to their least size, and throughput with them (TcpExtTCPMemoryPressures)",
	Source: ipPage + "#tcp-variables", Unit: "bytes", Beyond: true,
}, func(x *exam, w *Wall) bool { return x.tcpMem(w, 1, x.unreadPages()) })

// tcpMem fills in a wall of which the limit is one of the three numbers of tcp_mem,
// when each connection takes so many pages.
func (x *exam) tcpMem(w *Wall, which int, each int64) bool {
	limits, ok := x.numbers(tcpMemName, 3)
	if !ok {
		return false
	}
	pages := x.f.Sockets.Pages
	w.Present = fmt.Sprintf("%s pages, %s used", format.Count(limits[which]), format.Count(pages))
	w.Used, w.Limit = satMul(pages, x.page()), satMul(limits[which], x.page())
	if each > 0 {
		w.Holds = satSub(limits[which], pages) / each
	}
	if x.exceeded(w) {
		need := satAdd(max(pages, 0), satMul(each, x.n))
		w.Needs = format.Count(need) + " pages"
		pressure := max(withHeadroom(need), limits[1])
		high := max(satAdd(pressure, pressure/3), limits[2])
		w.Changes = []Change{x.sysctl(tcpMemName, fmt.Sprintf("%d %d %d", max(pressure/4*3, limits[0]), pressure, high))}
	}
	return true
}

var _ = wall(Wall{
	Name: "cgroup-sockets", What: "memory of the TCP buffers of the control group (memory.kmem.tcp.limit_in_bytes)",
	Effect: "what comes after a connection's first segment is dropped and sent again, as with tcp_mem",
	Source: "https://docs.kernel.org/admin-guide/cgroup-v1/memory.html", Unit: "bytes", Beyond: true,
}, func(x *exam, w *Wall) bool {
	c, each := x.f.Cgroup.Sockets, x.refusable()
	if c.Max <= 0 {
		return false
	}
	w.Present = fmt.Sprintf("%s bytes, %s used", format.Count(c.Max), format.Count(c.Used))
	w.Used, w.Limit, w.Of = c.Used, c.Max, c.From
	if each > 0 {
		w.Holds = satSub(c.Max, c.Used) / x.page() / each
	}
	if !x.exceeded(w) {
		return true
	}
	need := satAdd(max(c.Used, 0), satMul(satMul(x.page(), each), x.n))
	w.Needs = format.Count(need) + " bytes"
	if c.File != "" {
		w.Changes = []Change{c.to(x.wholePages(withHeadroom(need)))}
	} else {
		w.Advice = fmt.Sprintf("have who made the control group write %d or more to its memory.kmem.tcp.limit_in_bytes, or -1 for no limit", withHeadroom(need))
	}
	return true
})

// The buffer of unread bytes grows with what has been read: this is before anybody has.
var _ = wall(Wall{
	Name: "tcp_rmem", Soft: true, What: "unread bytes of one connection (net.ipv4.tcp_rmem, second; or SO_RCVBUF)",
	Effect: "the window closes: the peer's kernel keeps the rest, and then its writes wait",
	Source: ipPage + "#tcp-variables",
}, func(x *exam, w *Wall) bool { return x.oneBuffer(w, "net.ipv4.tcp_rmem", 1) },
	setting{name: "net.ipv4.tcp_rmem", amount: true, own: true})

var _ = wall(Wall{
	Name: "tcp_wmem", Soft: true, What: "unsent bytes of one connection (net.ipv4.tcp_wmem, third; or SO_SNDBUF)",
	Effect: "writes wait, or fail with EAGAIN where they may not: Myriad keeps the rest in its own memory (Limits.MaxUnsent)",
	Source: ipPage + "#tcp-variables",
}, func(x *exam, w *Wall) bool { return x.oneBuffer(w, "net.ipv4.tcp_wmem", 2) },
	setting{name: "net.ipv4.tcp_wmem", amount: true, own: true})

// oneBuffer fills in a wall by the field of a setting of three that bounds one
// connection's buffer.
func (x *exam) oneBuffer(w *Wall, name string, field int) bool {
	sizes, ok := x.numbers(name, 3)
	w.Present = x.f.Sysctls[name]
	if need := counted(x.p.Unread); ok && need > sizes[field] {
		w.Holds, w.Needs = 0, format.Count(need)
		for i := field; i < 3; i++ {
			sizes[i] = max(sizes[i], withHeadroom(need))
		}
		w.Changes = []Change{x.sysctl(name, fmt.Sprintf("%d %d %d", sizes[0], sizes[1], sizes[2]))}
	}
	return ok
}
