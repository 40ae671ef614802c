package doctor

import (
	"fmt"
	"strconv"

	"github.com/myriad-go/myriad/internal/format"
)

// This file has the walls of connections that end: the kernel goes on with them
// when their process has closed them. They are soft: what finds no room is reset,
// or gone at once.

const (
	orphansName = "net.ipv4.tcp_max_orphans"
	bucketsName = "net.ipv4.tcp_max_tw_buckets"
)

var _ = wall((*exam).orphans, setting{name: orphansName, amount: true, machineWide: true, least: "4096"})

// orphans are connections that no process has any more and whose end the peer has
// not confirmed: when peers are gone without a word, all of a server that ends.
func (x *exam) orphans() *Wall {
	limit, ok := x.number(orphansName)
	if !ok {
		return nil
	}
	w := &Wall{
		Name: "tcp_max_orphans", Soft: true, What: "connections that are closed here and not yet by peers that don't answer (" + orphansName + ")",
		Present: fmt.Sprintf("%s, %s now", format.Count(limit), format.Count(x.f.Sockets.Orphans)),
		Holds:   satSub(limit, x.f.Sockets.Orphans),
		Effect: "when all are closed at once and peers don't answer, those beyond are reset (TcpExtTCPAbortOnMemory; the kernel's log says " +
			"\"too many orphaned sockets\")",
		Source: ipPage + "#tcp-variables",
		Used:   x.f.Sockets.Orphans, Limit: limit, Unit: "orphans",
	}
	if x.near(w) {
		need := satAdd(max(x.f.Sockets.Orphans, 0), int64(x.p.Connections))
		w.Needs = format.Count(need)
		w.Changes = []Change{x.sysctl(orphansName, strconv.FormatInt(withHeadroom(need), 10))}
	}
	return w
}

var _ = wall((*exam).buckets, setting{name: bucketsName, amount: true, own: true, least: "2048"})

// buckets are connections in TIME_WAIT.
func (x *exam) buckets() *Wall {
	limit, ok := x.number(bucketsName)
	if !ok {
		return nil
	}
	w := &Wall{
		Name: "tcp_max_tw_buckets", Soft: true, What: "connections in TIME_WAIT (" + bucketsName + ")",
		Present: fmt.Sprintf("%s, %s now", format.Count(limit), format.Count(x.f.Sockets.TimeWait)), Holds: Unlimited,
		Effect: "those beyond skip TIME_WAIT (TcpExtTCPTimeWaitOverflow): a late packet can meet a new connection of the same ports",
		Source: ipPage + "#tcp-variables",
		Used:   x.f.Sockets.TimeWait, Limit: limit, Unit: "in TIME_WAIT",
	}
	if x.p.Closing == 0 {
		return w
	}
	waiting := satMul(int64(x.p.Closing), timeWait)
	w.Holds = mulDiv(satSub(limit, x.f.Sockets.TimeWait), int64(x.p.Connections), waiting)
	if x.near(w) {
		need := satAdd(max(x.f.Sockets.TimeWait, 0), waiting)
		w.Needs = format.Count(need)
		w.Changes = []Change{x.sysctl(bucketsName, strconv.FormatInt(withHeadroom(need), 10))}
	}
	return w
}
