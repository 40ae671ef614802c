package doctor

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/myriad-go/myriad/internal/format"
)

// This file has the walls of a listener: connections that have come and that the
// server has not accepted yet. They are soft: what finds no room is tried again by
// the client's kernel, after a second, then after two more, and so on.

const (
	somaxconnName  = "net.core.somaxconn"
	synBacklogName = "net.ipv4.tcp_max_syn_backlog"
	deviceName     = "net.core.netdev_max_backlog"
)

// queue is how many connections a listener's queue is to hold: what was asked for,
// but net.core.somaxconn at most.
func (x *exam) queue() (int64, bool) {
	most, ok := x.number(somaxconnName)
	return min(most, cmp.Or(int64(x.p.Backlog), most)), ok
}

// burst is how many connections come at once.
func (x *exam) burst() int64 { return int64(min(x.p.Burst, x.p.Connections)) }

var _ = wall((*exam).somaxconn, setting{name: somaxconnName, amount: true, own: true, least: "4096"})

// somaxconn is the queue of connections that wait to be accepted. The kernel
// compares before it adds, so that there is one more than was asked for.
func (x *exam) somaxconn() *Wall {
	queue, ok := x.queue()
	if !ok || !x.side(Server) {
		return nil
	}
	w := &Wall{
		Name: "somaxconn", Side: Server, Soft: true, What: "connections that wait at a listener (" + somaxconnName + ", and the backlog it asks for)",
		Present: x.f.Sysctls[somaxconnName], Holds: Unlimited,
		Effect: "the server's kernel drops what more comes (TcpExtListenOverflows): the client tries again after 1 s, 3 s, 7 s, and fails " +
			"with ETIMEDOUT if nothing is accepted until then",
		Source: "https://man7.org/linux/man-pages/man2/listen.2.html",
	}
	if q := x.f.Sockets.Queue; q != nil {
		w.Used, w.Limit, w.Unit, w.Of = q.Waiting, satAdd(q.Most, 1), "connections waiting", q.At.String()
	}
	if x.p.Backlog > 0 {
		w.Present += fmt.Sprintf(", asks for %s", format.Count(x.p.Backlog))
	}
	if x.burst() <= satAdd(queue, 1) {
		return w
	}
	w.Holds = satAdd(queue, 1)
	if !x.near(w) {
		return w
	}
	w.Needs = format.Count(x.burst())
	if asked := int64(x.p.Backlog); asked > 0 && asked < x.burst() {
		w.Advice = fmt.Sprintf("have the server ask for a backlog of %s, and have %s as large", format.Count(x.burst()), somaxconnName)
		return w
	}
	w.Changes = []Change{x.sysctl(somaxconnName, strconv.FormatInt(withHeadroom(x.burst()), 10))}
	return w
}

var _ = wall((*exam).synBacklog,
	setting{name: synBacklogName, amount: true, own: true, least: "128"},
	setting{name: "net.ipv4.tcp_syncookies", own: true, safe: true, least: "1"})

// synBacklog is the queue of connections whose handshake is under way. With
// syncookies, which are the default, there is no such bound: what finds no room
// there is remembered by a number that the client sends back.
func (x *exam) synBacklog() *Wall {
	limit, ok := x.number(synBacklogName)
	queue, known := x.queue()
	if !ok || !known || !x.side(Server) {
		return nil
	}
	w := &Wall{
		Name: "tcp_max_syn_backlog", Side: Server, Soft: true, What: "connections whose handshake is under way (" + synBacklogName + ")",
		Present: format.Count(limit), Holds: Unlimited,
		Effect: "the server's kernel drops what more comes (TcpExtListenDrops), as with somaxconn",
		Source: ipPage + "#tcp-variables",
	}
	if cookies, ok := x.number("net.ipv4.tcp_syncookies"); ok && cookies != 0 {
		w.Present += ", with syncookies beyond"
		return w
	}
	w.Present += ", no syncookies"
	// A quarter is kept for peers that are known (tcp_conn_request).
	room := min(limit-limit/4, queue)
	if x.burst() <= room {
		return w
	}
	w.Holds = room
	if !x.near(w) {
		return w
	}
	w.Needs = "syncookies"
	w.Changes = []Change{x.sysctl("net.ipv4.tcp_syncookies", "1")}
	return w
}

// perPacket is for how many connections that open and end together a packet's place
// is kept: a guess. 400,000 that were opened and reset over loopback lost 144,274 packets
// with a queue of 1,000 (400 for a place), and none with one of 100,000 (4).
const perPacket = 64

var _ = wall((*exam).deviceBacklog, setting{name: deviceName, amount: true, machineWide: true, least: "1000"})

// deviceBacklog is the queue of packets that a processor has yet to look at: those
// of the loopback interface pass through it.
func (x *exam) deviceBacklog() *Wall {
	limit, ok := x.number(deviceName)
	if !ok || !x.toLoopback() {
		return nil
	}
	w := &Wall{
		Name: "netdev_max_backlog", Soft: true, What: "packets that wait for a processor (" + deviceName + ")",
		Present: format.Count(limit),
		Effect: "packets are dropped (the second column of /proc/net/softnet_stat): a SYN is sent again after 1 s, 2 s, 3 s, 4 s and more, " +
			"a reset is not, so that the other side keeps a connection that is gone",
		Source: "https://docs.kernel.org/admin-guide/sysctl/net.html#netdev-max-backlog",
	}
	w.Holds = satMul(limit, perPacket)
	if x.burst() > limit {
		w.Holds = limit
	}
	if x.near(w) {
		need := max(x.burst(), ceilDiv(int64(x.p.Connections), perPacket))
		w.Needs = format.Count(need)
		w.Changes = []Change{x.sysctl(deviceName, strconv.FormatInt(withHeadroom(need), 10))}
	}
	return w
}
