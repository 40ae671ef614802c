package doctor

import (
	"cmp"
	"fmt"
)

// The kernel keeps closed connections for some time.

const (
	orphansName = "net.ipv4.tcp_max_orphans"
	bucketsName = "net.ipv4.tcp_max_tw_buckets"
	reuseName   = "net.ipv4.tcp_tw_reuse"

	// timeWaitSeconds is the time that a connection stays in TIME_WAIT (TCP_TIMEWAIT_LEN in the kernel).
	timeWaitSeconds = 60
)

var _ = registerSysctlWall(Wall{
	Name: "tcp_max_orphans", Soft: true, What: "connections closed here whose peers do not answer (" + orphansName + ")",
	Effect: "if all are closed at once and peers do not answer, the excess is reset (TcpExtTCPAbortOnMemory; the kernel's log says " +
		"\"too many orphaned sockets\")",
	Source: ipPage + "#tcp-variables", Unit: "orphans",
}, sysctlInfo{name: orphansName, isAmount: true, machineWide: true, defaultValue: "4096"}, func(x *analysis, w *Wall, limit int64) bool {
	orphans := x.f.Sockets.Orphans
	w.setUsedAndLimit(orphans, limit)
	w.Holds = subtractDownToZero(limit, orphans)
	x.requireSysctlIfExceeded(w, orphansName, saturatingAdd(max(orphans, 0), x.n))
	return true
})

var _ = registerSysctlWall(Wall{
	Name: "tcp_max_tw_buckets", Soft: true, What: "connections in TIME_WAIT (" + bucketsName + ")",
	Effect: "excess connections skip TIME_WAIT (TcpExtTCPTimeWaitOverflow): a late packet can reach a new connection with the same ports",
	Source: ipPage + "#tcp-variables", Unit: "in TIME_WAIT",
}, sysctlInfo{name: bucketsName, isAmount: true, perNamespace: true, defaultValue: "2048"}, func(x *analysis, w *Wall, limit int64) bool {
	now, closing := x.f.Sockets.TimeWait, saturatingMul(int64(x.p.Closing), timeWaitSeconds)
	w.setUsedAndLimit(now, limit)
	if closing > 0 {
		w.Holds = saturatingMulDiv(subtractDownToZero(limit, now), x.n, closing)
		x.requireSysctlIfExceeded(w, bucketsName, saturatingAdd(max(now, 0), closing))
	}
	return true
})

var _ = registerWall(Wall{
	Name: "tcp_tw_reuse", Side: Client, What: "ports in TIME_WAIT after an orderly close (" + reuseName + ")",
	Effect: "EADDRNOTAVAIL, as with ports, while connections replace others",
	Source: ipPage + "#tcp-variables",
}, (*analysis).examineTimeWaitReuse, sysctlInfo{name: reuseName, perNamespace: true, defaultValue: "2"})

// examineTimeWaitReuse sets w.Holds to the number of connections for which there are enough ports, although closed
// connections keep their ports in TIME_WAIT. applies is false unless the plan is for a client that closes connections.
func (x *analysis) examineTimeWaitReuse(w *Wall) (applies bool) {
	r, pairs, _, ok := x.clientPorts()
	if !ok || x.p.Side != Client || x.p.Closing == 0 {
		return false
	}
	mode, closing := x.f.Sysctls[reuseName], int64(x.p.Closing)
	seconds := int64(timeWaitSeconds)
	if mode == "1" || mode == "2" && x.targetsLoopback() { // the default 2 applies to loopback only
		seconds = 1
	}
	w.Present = fmt.Sprintf("%s: a port waits %d s", cmp.Or(mode, "not there"), seconds)
	w.Holds = x.connsFittingWithClosing(saturatingMul(r.countUsablePorts(), pairs), seconds)
	if !x.isExceededByPlan(w) {
		return true
	}
	if seconds > 1 {
		w.Changes = []Change{x.sysctlChange(reuseName, "1")}
	}
	need := saturatingAdd(x.n, closing) // with tcp_tw_reuse=1, a port waits for one second
	if need > saturatingMul(r.countUsablePorts(), pairs) {
		x.requireWiderPortsOrAdvise(w, r, need, pairs)
	} else {
		w.Needs = "1"
	}
	if w.Advice != "" {
		w.Advice += "; close by a reset (--close rst), or set " + reuseName + "=1"
	}
	return true
}

// connsFittingWithClosing returns how many connections can be open at the same time. Each open connection takes one
// unit of capacity. After a connection has closed, it keeps its unit for occupiedSeconds more. The result assumes that
// Plan.Closing is proportional to the number of connections.
func (x *analysis) connsFittingWithClosing(capacity, occupiedSeconds int64) int64 {
	return saturatingMulDiv(capacity, x.n, saturatingAdd(x.n, saturatingMul(int64(x.p.Closing), occupiedSeconds)))
}
