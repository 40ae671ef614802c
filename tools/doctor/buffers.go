package doctor

import (
	"fmt"

	"github.com/myriad-go/myriad/internal/format"
)

// Kernel memory for unread and unsent bytes is limited. An idle connection uses none.

const (
	tcpMemName = "net.ipv4.tcp_mem"
	// maxSegmentBytes is the maximum payload of a loopback packet. The kernel counts segmentOverhead bytes more.
	maxSegmentBytes = 32_741
	segmentOverhead = 832
)

func kernelBytesForUnread(unread int) int64 {
	return int64(unread) + segmentOverhead*ceilDiv(int64(unread), maxSegmentBytes)
}

func (x *analysis) unreadPagesPerConn() int64 {
	return ceilDiv(kernelBytesForUnread(x.p.Unread), x.pageSize())
}

func (x *analysis) pageSize() int64 {
	if x.f.PageSize <= 0 {
		return 4096
	}
	return x.f.PageSize
}

func (x *analysis) roundUpToPages(bytes int64) int64 {
	return saturatingMul(ceilDiv(bytes, x.pageSize()), x.pageSize())
}

// unreadPagesPerConnZeroIfShort returns the number of memory pages that the unread data of one connection occupies. It
// returns 0 if the data is so short that the kernel buffers it even if a limit is exceeded.
func (x *analysis) unreadPagesPerConnZeroIfShort() int64 {
	// The kernel accepts a first segment regardless of limits.
	if x.p.Unread <= maxSegmentBytes {
		return 0
	}
	return x.unreadPagesPerConn()
}

var _ = registerWall(Wall{
	Name: "tcp_mem", What: "memory of all TCP buffers of the machine (" + tcpMemName + ", third)",
	Effect: "data after a connection's first segment is dropped and resent until the application reads (TcpExtTCPRcvQDrop, PruneCalled; " +
		"\"TCP: out of memory -- consider tuning tcp_mem\" in the kernel's log): writes wait, or fail with EAGAIN",
	Source: ipPage + "#tcp-variables", Unit: "bytes", Beyond: true,
}, func(x *analysis, w *Wall) bool { return x.fillTCPMemWall(w, 2, x.unreadPagesPerConnZeroIfShort()) },
	sysctlInfo{name: tcpMemName, isAmount: true, machineWide: true, defaultValue: "64 128 256"})

var _ = registerWall(Wall{
	Name: "tcp_mem-pressure", Soft: true, What: "memory of TCP buffers at which they stop growing (" + tcpMemName + ", second)",
	Effect: "buffers shrink to their minimum size, and throughput with them (TcpExtTCPMemoryPressures)",
	Source: ipPage + "#tcp-variables", Unit: "bytes", Beyond: true,
}, func(x *analysis, w *Wall) bool { return x.fillTCPMemWall(w, 1, x.unreadPagesPerConn()) })

// fillTCPMemWall sets w.Holds to the number of connections that one of tcp_mem's three limits allows, and adds a change
// if that is not enough. applies is false if tcp_mem is unknown.
func (x *analysis) fillTCPMemWall(w *Wall, limitIndex int, pagesPerConn int64) (applies bool) {
	limits, ok := x.nonNegativeSysctlNumbers(tcpMemName, 3)
	if !ok {
		return false
	}
	pages := x.f.Sockets.Pages
	w.Present = fmt.Sprintf("%s pages, %s used", format.Count(limits[limitIndex]), format.Count(pages))
	w.Used, w.Limit = saturatingMul(pages, x.pageSize()), saturatingMul(limits[limitIndex], x.pageSize())
	if pagesPerConn > 0 {
		w.Holds = subtractDownToZero(limits[limitIndex], pages) / pagesPerConn
	}
	if x.isExceededByPlan(w) {
		need := saturatingAdd(max(pages, 0), saturatingMul(pagesPerConn, x.n))
		w.Needs = format.Count(need) + " pages"
		pressure := max(addEighthAndRoundUp(need), limits[1])
		high := max(saturatingAdd(pressure, pressure/3), limits[2])
		w.Changes = []Change{x.sysctlChange(tcpMemName, fmt.Sprintf("%d %d %d", max(pressure/4*3, limits[0]), pressure, high))}
	}
	return true
}

var _ = registerWall(Wall{
	Name: "cgroup-sockets", What: "memory of the TCP buffers of the control group (memory.kmem.tcp.limit_in_bytes)",
	Effect: "data after a connection's first segment is dropped and resent, as with tcp_mem",
	Source: "https://docs.kernel.org/admin-guide/cgroup-v1/memory.html", Unit: "bytes", Beyond: true,
}, func(x *analysis, w *Wall) bool {
	c, each := x.f.Cgroup.Sockets, x.unreadPagesPerConnZeroIfShort()
	if c.Max <= 0 {
		return false
	}
	w.Present = fmt.Sprintf("%s bytes, %s used", format.Count(c.Max), format.Count(c.Used))
	w.Used, w.Limit, w.Of = c.Used, c.Max, c.From
	if each > 0 {
		w.Holds = subtractDownToZero(c.Max, c.Used) / x.pageSize() / each
	}
	if !x.isExceededByPlan(w) {
		return true
	}
	need := saturatingAdd(max(c.Used, 0), saturatingMul(saturatingMul(x.pageSize(), each), x.n))
	w.Needs = format.Count(need) + " bytes"
	if c.File != "" {
		w.Changes = []Change{c.changeLimitTo(x.roundUpToPages(addEighthAndRoundUp(need)))}
	} else {
		w.Advice = fmt.Sprintf("let the owner of the control group write at least %d to its memory.kmem.tcp.limit_in_bytes, or -1 for no limit", addEighthAndRoundUp(need))
	}
	return true
})

var _ = registerWall(Wall{
	Name: "tcp_rmem", Soft: true, What: "unread bytes of one connection (net.ipv4.tcp_rmem, second; or SO_RCVBUF)",
	Effect: "the window closes: the peer's kernel keeps the rest, and then its writes wait",
	Source: ipPage + "#tcp-variables",
}, func(x *analysis, w *Wall) bool { return x.examineBufferSizeForUnread(w, "net.ipv4.tcp_rmem", 1) },
	sysctlInfo{name: "net.ipv4.tcp_rmem", isAmount: true, perNamespace: true})

var _ = registerWall(Wall{
	Name: "tcp_wmem", Soft: true, What: "unsent bytes of one connection (net.ipv4.tcp_wmem, third; or SO_SNDBUF)",
	Effect: "writes block, or fail with EAGAIN if non-blocking: Myriad keeps the rest in its own memory (Limits.MaxUnsent)",
	Source: ipPage + "#tcp-variables",
}, func(x *analysis, w *Wall) bool { return x.examineBufferSizeForUnread(w, "net.ipv4.tcp_wmem", 2) },
	sysctlInfo{name: "net.ipv4.tcp_wmem", isAmount: true, perNamespace: true})

// examineBufferSizeForUnread sets w.Holds to 0 and adds a change if a connection's buffer cannot hold Plan.Unread.
// applies is false if the value of the setting is unknown.
func (x *analysis) examineBufferSizeForUnread(w *Wall, name string, sizeIndex int) (applies bool) {
	sizes, ok := x.nonNegativeSysctlNumbers(name, 3)
	w.Present = x.f.Sysctls[name]
	if need := kernelBytesForUnread(x.p.Unread); ok && need > sizes[sizeIndex] {
		w.Holds, w.Needs = 0, format.Count(need)
		for i := sizeIndex; i < 3; i++ {
			sizes[i] = max(sizes[i], addEighthAndRoundUp(need))
		}
		w.Changes = []Change{x.sysctlChange(name, fmt.Sprintf("%d %d %d", sizes[0], sizes[1], sizes[2]))}
	}
	return ok
}
