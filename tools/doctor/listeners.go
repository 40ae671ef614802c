package doctor

import (
	"cmp"
	"fmt"

	"github.com/myriad-go/myriad/internal/format"
)

// These limits concern connections that a server has not accepted yet. They are soft: after a dropped SYN, the client's
// kernel tries again after one second, after two more seconds, and so on.

const (
	somaxconnName  = "net.core.somaxconn"
	synBacklogName = "net.ipv4.tcp_max_syn_backlog"
	cookiesName    = "net.ipv4.tcp_syncookies"
	deviceName     = "net.core.netdev_max_backlog"
)

func (x *analysis) effectiveBacklog(somaxconn int64) int64 {
	return min(somaxconn, cmp.Or(int64(x.p.Backlog), somaxconn))
}

func (x *analysis) connsArrivingAtOnce() int64 { return min(int64(x.p.Burst), x.n) }

var _ = registerSysctlWall(Wall{
	Name: "somaxconn", Side: Server, Soft: true, What: "connections that wait to be accepted (" + somaxconnName + ", and the backlog it asks for)",
	Effect: "the server's kernel drops further connections (TcpExtListenOverflows): the client retries after 1 s, 3 s, 7 s, and fails " +
		"with ETIMEDOUT if nothing is accepted until then",
	Source: "https://man7.org/linux/man-pages/man2/listen.2.html",
}, sysctlInfo{name: somaxconnName, isAmount: true, perNamespace: true, defaultValue: "4096"}, func(x *analysis, w *Wall, limit int64) bool {
	w.Present = x.f.Sysctls[somaxconnName]
	if q := x.f.Sockets.Queue; q != nil {
		w.Used, w.Limit, w.Unit, w.Of = q.Waiting, saturatingAdd(q.Backlog, 1), "connections waiting", q.At.String()
	}
	if x.p.Backlog > 0 {
		w.Present += fmt.Sprintf(", asks for %s", format.Count(x.p.Backlog))
	}
	if most := saturatingAdd(x.effectiveBacklog(limit), 1); x.connsArrivingAtOnce() > most {
		w.Holds = most
	}
	if asked := int64(x.p.Backlog); x.isExceededByPlan(w) && asked > 0 && asked < x.connsArrivingAtOnce() {
		w.Needs = format.Count(x.connsArrivingAtOnce())
		w.Advice = fmt.Sprintf("let the server request a backlog of %s, and set %s as high", w.Needs, somaxconnName)
	} else {
		x.requireSysctlIfExceeded(w, somaxconnName, x.connsArrivingAtOnce())
	}
	return x.isSideLocal(Server)
})

var _ = registerSysctlWall(Wall{
	Name: "tcp_max_syn_backlog", Side: Server, Soft: true, What: "connections during the handshake (" + synBacklogName + ")",
	Effect: "the server's kernel drops further connections (TcpExtListenDrops), as with somaxconn",
	Source: ipPage + "#tcp-variables",
}, sysctlInfo{name: synBacklogName, isAmount: true, perNamespace: true, defaultValue: "128"}, func(x *analysis, w *Wall, limit int64) bool {
	somaxconn, ok := x.sysctlNumber(somaxconnName)
	if !ok || !x.isSideLocal(Server) {
		return false
	}
	if cookies, ok := x.sysctlNumber(cookiesName); ok && cookies != 0 {
		w.Present = format.Count(limit) + ", with syncookies beyond"
		return true
	}
	w.Present = format.Count(limit) + ", no syncookies"
	// The kernel reserves a quarter for known peers (tcp_conn_request).
	if room := min(limit-limit/4, x.effectiveBacklog(somaxconn)); x.connsArrivingAtOnce() > room {
		w.Holds = room
	}
	if x.isExceededByPlan(w) {
		w.Needs, w.Changes = "syncookies", []Change{x.sysctlChange(cookiesName, "1")}
	}
	return true
}, sysctlInfo{name: cookiesName, perNamespace: true, kubernetesSafe: true, defaultValue: "1"})

// connsPerBacklogPacket is an estimate: one place in the kernel's packet queue is enough for this number of open
// connections.
const connsPerBacklogPacket = 64

var _ = registerSysctlWall(Wall{
	Name: "netdev_max_backlog", Soft: true, What: "packets that wait for a processor (" + deviceName + ")",
	Effect: "packets are dropped (the second column of /proc/net/softnet_stat): a SYN is sent again after 1 s, 2 s, 3 s, 4 s and more, " +
		"a reset is not, so that the other side keeps a connection that is gone; an idle connection that loses all of its " +
		"keepalive probes is reset (TcpExtTCPAbortOnTimeout)",
	Source: "https://docs.kernel.org/admin-guide/sysctl/net.html#netdev-max-backlog",
}, sysctlInfo{name: deviceName, isAmount: true, machineWide: true, defaultValue: "1000"}, func(x *analysis, w *Wall, limit int64) bool {
	w.Present, w.Holds = format.Count(limit), saturatingMul(limit, connsPerBacklogPacket)
	if x.connsArrivingAtOnce() > limit {
		w.Holds = limit
	}
	x.requireSysctlIfExceeded(w, deviceName, max(x.connsArrivingAtOnce(), ceilDiv(x.n, connsPerBacklogPacket)))
	return x.targetsLoopback()
})
