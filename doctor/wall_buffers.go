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

var _ = wall((*exam).tcpMemory, setting{name: tcpMemName, amount: true, machineWide: true, least: "64 128 256"})

// tcpMemory is the limit of all buffers of TCP on the machine.
func (x *exam) tcpMemory() *Wall {
	return x.tcpMem(2, x.refusable(), Wall{
		Name: "tcp_mem", What: "memory of all TCP buffers of the machine (" + tcpMemName + ", third)",
		Effect: "what comes after a connection's first segment is dropped and sent again until somebody reads (TcpExtTCPRcvQDrop, PruneCalled; " +
			"\"TCP: out of memory -- consider tuning tcp_mem\" in the kernel's log): writes wait, or fail with EAGAIN",
	})
}

var _ = wall((*exam).tcpPressure)

// tcpPressure is where the kernel begins to be short of it.
func (x *exam) tcpPressure() *Wall {
	return x.tcpMem(1, x.unreadPages(), Wall{
		Name: "tcp_mem-pressure", Soft: true, What: "memory of TCP buffers from which on they no longer grow (" + tcpMemName + ", second)",
		Effect: "buffers shrink to their least size, and throughput with them (TcpExtTCPMemoryPressures)",
	})
}

// tcpMem fills in a wall of which the limit is one of the three numbers of tcp_mem,
// when each connection takes so many pages.
func (x *exam) tcpMem(which int, each int64, w Wall) *Wall {
	limits, ok := x.numbers(tcpMemName, 3)
	if !ok {
		return nil
	}
	pages := x.f.Sockets.Pages
	w.Present = fmt.Sprintf("%s pages, %s used", format.Count(limits[which]), format.Count(pages))
	w.Holds, w.Source, w.Beyond = Unlimited, ipPage+"#tcp-variables", true
	w.Used, w.Limit, w.Unit = satMul(pages, x.page()), satMul(limits[which], x.page()), "bytes"
	if each == 0 {
		return &w
	}
	w.Holds = satSub(limits[which], pages) / each
	if !x.near(&w) {
		return &w
	}
	need := satAdd(max(pages, 0), satMul(each, int64(x.p.Connections)))
	w.Needs = format.Count(need) + " pages"
	pressure := max(withHeadroom(need), limits[1])
	high := max(satAdd(pressure, pressure/3), limits[2])
	w.Changes = []Change{x.sysctl(tcpMemName, fmt.Sprintf("%d %d %d", max(pressure/4*3, limits[0]), pressure, high))}
	return &w
}

var _ = wall((*exam).cgroupSockets)

// cgroupSockets is the limit of the buffers of a control group.
func (x *exam) cgroupSockets() *Wall {
	limit, each := x.f.Cgroup.Sockets, x.refusable()
	if limit <= 0 {
		return nil
	}
	w := &Wall{
		Name: "cgroup-sockets", What: "memory of the TCP buffers of the control group (memory.kmem.tcp.limit_in_bytes)",
		Present: fmt.Sprintf("%s bytes, %s used", format.Count(limit), format.Count(x.f.Cgroup.SocketsUsed)), Holds: Unlimited,
		Effect: "what comes after a connection's first segment is dropped and sent again, as with tcp_mem",
		Source: "https://docs.kernel.org/admin-guide/cgroup-v1/memory.html",
		Used:   x.f.Cgroup.SocketsUsed, Limit: limit, Unit: "bytes", Of: x.f.Cgroup.SocketsFrom, Beyond: true,
	}
	if each == 0 {
		return w
	}
	w.Holds = satSub(limit, x.f.Cgroup.SocketsUsed) / x.page() / each
	if !x.near(w) {
		return w
	}
	need := satAdd(max(x.f.Cgroup.SocketsUsed, 0), satMul(satMul(x.page(), each), int64(x.p.Connections)))
	w.Needs = format.Count(need) + " bytes"
	if file := x.f.Cgroup.SocketsFile; file != "" {
		w.Changes = []Change{cgroupChange(file, limit, x.wholePages(withHeadroom(need)))}
	} else {
		w.Advice = fmt.Sprintf("have who made the control group write %d or more to its memory.kmem.tcp.limit_in_bytes, or -1 for no limit", withHeadroom(need))
	}
	return w
}

var _ = wall((*exam).receiveBuffer, setting{name: "net.ipv4.tcp_rmem", amount: true, own: true})

// receiveBuffer is how much of the unread bytes of one connection has room where
// they are to be read, before anybody has read: the buffer grows with what is.
func (x *exam) receiveBuffer() *Wall {
	return x.oneBuffer("net.ipv4.tcp_rmem", 1, Wall{
		Name: "tcp_rmem", What: "unread bytes of one connection (net.ipv4.tcp_rmem, second; or SO_RCVBUF)",
		Effect: "the window closes: the peer's kernel keeps the rest, and then its writes wait",
	})
}

var _ = wall((*exam).sendBuffer, setting{name: "net.ipv4.tcp_wmem", amount: true, own: true})

// sendBuffer is how much of what was written to one connection has room until it
// is sent.
func (x *exam) sendBuffer() *Wall {
	return x.oneBuffer("net.ipv4.tcp_wmem", 2, Wall{
		Name: "tcp_wmem", What: "unsent bytes of one connection (net.ipv4.tcp_wmem, third; or SO_SNDBUF)",
		Effect: "writes wait, or fail with EAGAIN where they may not: Myriad keeps the rest in its own memory (Limits.MaxUnsent)",
	})
}

// oneBuffer fills in a soft wall: the field of a setting of three that bounds one
// connection's buffer.
func (x *exam) oneBuffer(name string, field int, w Wall) *Wall {
	sizes, ok := x.numbers(name, 3)
	if !ok {
		return nil
	}
	w.Soft, w.Holds, w.Present = true, Unlimited, x.f.Sysctls[name]
	w.Source = ipPage + "#tcp-variables"
	need := counted(x.p.Unread)
	if need <= sizes[field] {
		return &w
	}
	w.Holds, w.Needs = 0, format.Count(need)
	for i := field; i < 3; i++ {
		sizes[i] = max(sizes[i], withHeadroom(need))
	}
	w.Changes = []Change{x.sysctl(name, fmt.Sprintf("%d %d %d", sizes[0], sizes[1], sizes[2]))}
	return &w
}
