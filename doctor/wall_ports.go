package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/myriad-go/myriad/internal/format"
)

// This file has the walls of a client's ports: a connection takes one of
// net.ipv4.ip_local_port_range, and the same port serves once for each pair of a
// source address and a target.

const (
	rangeName    = "net.ipv4.ip_local_port_range"
	reservedName = "net.ipv4.ip_local_reserved_ports"
	reuseName    = "net.ipv4.tcp_tw_reuse"

	ipPage = "https://docs.kernel.org/networking/ip-sysctl.html"

	// loopbackSources is how many addresses of 127.0.0.0/8 the generator of
	// package load can connect from by itself.
	loopbackSources = 254 << 16
)

// portRange is the range of ports from low to high, and which of it can't be used.
type portRange struct {
	low, high int64
	taken     map[int64]bool
}

// room is how many ports of it connect(2) hands out. It looks at an even number of
// them: of an odd range the last one is left over (__inet_hash_connect in the
// kernel's net/ipv4/inet_hashtables.c).
func (r portRange) room() int64 {
	n := r.high - r.low + 1
	if n > 1 {
		n &^= 1
	}
	end := r.low + n
	for port := range r.taken {
		if port >= r.low && port < end {
			n--
		}
	}
	return n
}

// portRange reads the machine's.
func (x *exam) portRange() (portRange, bool) {
	ends, ok := x.numbers(rangeName, 2)
	if !ok || ends[0] > ends[1] || ends[1] > 65535 {
		return portRange{}, false
	}
	r := portRange{low: ends[0], high: ends[1], taken: parsePorts(x.f.Sysctls[reservedName])}
	for _, port := range x.f.Sockets.Ports {
		r.taken[int64(port)] = true
	}
	for _, port := range x.serverPorts() {
		r.taken[int64(port)] = true
	}
	return r, true
}

// serverPorts are the ports at which this machine is going to listen.
func (x *exam) serverPorts() []uint16 {
	var ports []uint16
	for _, t := range x.p.Targets {
		if x.side(Server) && !slices.Contains(ports, t.Port()) {
			ports = append(ports, t.Port())
		}
	}
	slices.Sort(ports)
	return ports
}

// parsePorts reads a list such as "8080,9000-9010"; what is no port is left out.
func parsePorts(text string) map[int64]bool {
	ports, _ := portList(text)
	return ports
}

// portList is parsePorts, and reports whether all of the list are ports.
func portList(text string) (ports map[int64]bool, ok bool) {
	ports, ok = make(map[int64]bool), true
	for item := range strings.SplitSeq(text, ",") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		from, to, isRange := strings.Cut(item, "-")
		if !isRange {
			to = from
		}
		first, err := strconv.ParseUint(from, 10, 16)
		last, otherErr := strconv.ParseUint(to, 10, 16)
		if err != nil || otherErr != nil || first > last {
			ok = false
			continue
		}
		for port := first; port <= last; port++ {
			ports[int64(port)] = true
		}
	}
	return ports, ok
}

// portRuns writes ports as the kernel does, in ascending order, those that follow
// each other as a range.
func portRuns(ports map[int64]bool) string {
	var items []string
	sorted := slices.Sorted(maps.Keys(ports))
	for i := 0; i < len(sorted); {
		first, last := sorted[i], sorted[i]
		for i++; i < len(sorted) && sorted[i] == last+1; i++ {
			last++
		}
		item := strconv.FormatInt(first, 10)
		if first < last {
			item += "-" + strconv.FormatInt(last, 10)
		}
		items = append(items, item)
	}
	return strings.Join(items, ",")
}

// pairs is how many pairs of a source address and a target there are, and says
// how many sources.
func (x *exam) pairs() (pairs int64, sources string) {
	targets := make(map[netip.AddrPort]bool)
	for _, t := range x.p.Targets {
		targets[t] = true
	}
	n, where := int64(len(x.p.Sources)), ""
	switch {
	case n > 0:
		distinct := make(map[netip.Addr]bool)
		for _, s := range x.p.Sources {
			distinct[s.Unmap()] = true
		}
		n = int64(len(distinct))
	case x.toLoopback() && is4(x.p.Targets[0].Addr()):
		n, where = loopbackSources, " of 127.0.0.0/8"
	case x.toLoopback():
		n = 1
	default:
		on := x.leading()
		if n = int64(len(x.own(on))); on != nil {
			where = " of " + on.Name
		}
	}
	return satMul(n, int64(len(targets))), format.Plural(n, "source address", "source addresses") + where
}

// toLoopback reports whether the connections stay on the loopback interface.
func (x *exam) toLoopback() bool { return x.p.Targets[0].Addr().Unmap().IsLoopback() }

// leading is the interface that leads to the first target: the one whose network
// it is in, otherwise the first that has an address others can reach; nil if there
// is none.
func (x *exam) leading() *Interface {
	target := x.p.Targets[0].Addr().Unmap().WithZone("")
	var first *Interface
	for i := range x.f.Interfaces {
		on := &x.f.Interfaces[i]
		if !on.Up || on.Loopback || len(x.own(on)) == 0 {
			continue
		}
		if on.reaches(target) {
			return on
		}
		if first == nil {
			first = on
		}
	}
	return first
}

// reaches reports whether an address is of one of the interface's networks, so that
// another host may have it.
func (i *Interface) reaches(a netip.Addr) bool {
	return slices.ContainsFunc(i.Addrs, func(p netip.Prefix) bool { return p.Contains(a) })
}

// sourced reports whether it is known from how many addresses the targets can be reached:
// the plan says so, or it is loopback's, or those of interfaces, which could be read.
func (x *exam) sourced() bool {
	return len(x.p.Sources) > 0 || x.toLoopback() || len(x.f.Interfaces) > 0
}

// own are the addresses of an interface from which the targets can be reached.
func (x *exam) own(on *Interface) []netip.Addr {
	var own []netip.Addr
	for i := 0; on != nil && i < len(on.Addrs); i++ {
		a := on.Addrs[i].Addr().Unmap()
		if is4(a) == is4(x.p.Targets[0].Addr()) && a.IsGlobalUnicast() {
			own = append(own, a)
		}
	}
	return own
}

var _ = wall((*exam).ports,
	setting{name: rangeName, amount: true, own: true, safe: true, least: "32768 60999"},
	setting{name: reservedName, own: true, safe: true},
	setting{name: "net.ipv4.ip_unprivileged_port_start", own: true, safe: true})

// ports is the range.
func (x *exam) ports() *Wall {
	r, ok := x.portRange()
	if !ok || !x.side(Client) || !x.sourced() {
		return nil
	}
	pairs, sources := x.pairs()
	w := &Wall{
		Name: "ports", Side: Client, What: "ports to connect from (" + rangeName + ") × source addresses × targets",
		Present: fmt.Sprintf("%d-%d: %s × %s × %s", r.low, r.high, format.Count(r.room()), sources, format.Plural(int64(len(x.p.Targets)), "target", "targets")),
		Holds:   satMul(r.room(), pairs),
		Effect:  "EADDRNOTAVAIL, \"cannot assign requested address\", from the client's connect(2)",
		Source:  ipPage + "#ip-variables",
	}
	if !x.near(w) {
		return w
	}
	x.widen(w, r, int64(x.p.Connections), pairs)
	return w
}

// widen says what a wall of ports needs so that there are so many for all pairs.
func (x *exam) widen(w *Wall, r portRange, need, pairs int64) {
	each := ceilDiv(need, max(pairs, 1))
	lowest := min(x.lowest(), r.low)
	for _, low := range []int64{16384, 10240, lowest} {
		wide := portRange{low: max(min(low, r.low), lowest), high: 65535, taken: r.taken}
		if pairs > 0 && wide.room() >= each {
			w.Needs = fmt.Sprintf("%d-%d", wide.low, wide.high)
			w.Changes = append(w.Changes, x.reserve(wide)...)
			w.Changes = append(w.Changes, x.sysctl(rangeName, fmt.Sprintf("%d %d", wide.low, wide.high)))
			return
		}
	}
	widest := portRange{low: lowest, high: 65535, taken: r.taken}
	enough := ceilDiv(need, max(widest.room(), 1))
	w.Needs = fmt.Sprintf("sources × targets: %s", format.Count(enough))
	w.Advice = fmt.Sprintf("widen the range (`sysctl -w %s='%d 65535'`), and connect from more addresses (--src) or to more targets, "+
		"so that sources × targets is %s; it is %s", rangeName, lowest, format.Count(enough), format.Count(pairs))
	w.Changes = nil
}

// lowest is the lowest port that the range may begin with.
func (x *exam) lowest() int64 {
	first, _ := x.number("net.ipv4.ip_unprivileged_port_start")
	return min(max(first, 1024), 65535)
}

// reserve keeps the ports of servers out of a range that is to have them, those of the
// plan and all that listen in what is added to the range: a client could take one while
// its server is down.
func (x *exam) reserve(wide portRange) []Change {
	reserved := parsePorts(x.f.Sysctls[reservedName])
	before := len(reserved)
	for _, port := range x.serverPorts() {
		reserved[int64(port)] = reserved[int64(port)] || int64(port) >= wide.low
	}
	present, known := x.portRange()
	for _, port := range x.f.Sockets.Ports {
		p := int64(port)
		if p >= wide.low && known && (p < present.low || p > present.high) {
			reserved[p] = true
		}
	}
	maps.DeleteFunc(reserved, func(_ int64, is bool) bool { return !is })
	if len(reserved) == before {
		return nil
	}
	return []Change{x.sysctl(reservedName, portRuns(reserved))}
}

var _ = wall((*exam).portSearch)

// portSearch is where connecting becomes slow: the kernel tries one port after the
// other, first all of one parity. The generator keeps to a quarter of the ports of
// an address where it may choose addresses itself.
func (x *exam) portSearch() *Wall {
	r, ok := x.portRange()
	pairs, sources := x.pairs()
	if !ok || !x.side(Client) || !x.sourced() || pairs >= loopbackSources {
		return nil
	}
	w := &Wall{
		Name: "port-search", Side: Client, Soft: true, What: "half of those ports: from there on the kernel searches long for a free one",
		Present: fmt.Sprintf("%s × %s", format.Count(r.room()/2), sources),
		Holds:   satMul(r.room()/2, pairs),
		Effect:  "connect(2) takes processor time: with two thirds in use it is ten times slower",
		Source:  "https://docs.kernel.org/networking/ip-sysctl.html#ip-variables",
	}
	if x.near(w) {
		w.Needs = fmt.Sprintf("%s source addresses", format.Count(ceilDiv(int64(x.p.Connections), max(r.room()/2, 1))))
		w.Advice = "connect from more addresses (--src), or to more targets"
	}
	return w
}

var _ = wall((*exam).reuse, setting{name: reuseName, own: true, least: "2"})

// reuse is how long the port of a connection that this side has closed in order is
// out of use.
func (x *exam) reuse() *Wall {
	r, ok := x.portRange()
	if !ok || x.p.Side != Client || !x.sourced() || x.p.Closing == 0 {
		return nil
	}
	pairs, _ := x.pairs()
	seconds := x.waiting(x.f.Sysctls[reuseName])
	w := &Wall{
		Name: "tcp_tw_reuse", Side: Client, What: "ports out of use after an orderly close, in TIME_WAIT (" + reuseName + ")",
		Present: fmt.Sprintf("%s: a port waits %d s", cmp.Or(x.f.Sysctls[reuseName], "not there"), seconds),
		Holds:   x.withClosing(satMul(r.room(), pairs), seconds),
		Effect:  "EADDRNOTAVAIL, as with ports, while connections replace others",
		Source:  ipPage + "#tcp-variables",
	}
	if !x.near(w) {
		return w
	}
	need := satAdd(int64(x.p.Connections), satMul(int64(x.p.Closing), seconds))
	if seconds > 1 {
		need = satAdd(int64(x.p.Connections), int64(x.p.Closing))
		w.Changes = []Change{x.sysctl(reuseName, "1")}
	}
	if need > satMul(r.room(), pairs) {
		x.widen(w, r, need, pairs)
	} else {
		w.Needs = "1"
	}
	if w.Advice != "" {
		w.Advice += "; close by a reset (--close rst), or set " + reuseName + "=1"
	}
	return w
}

// waiting is for how many seconds a port is out of use under a setting of
// tcp_tw_reuse. With 2, which is the default, it is so on loopback only.
func (x *exam) waiting(setting string) int64 {
	if setting == "1" || setting == "2" && x.toLoopback() {
		return 1
	}
	return timeWait
}

// timeWait is how long a connection is in TIME_WAIT, in seconds (TCP_TIMEWAIT_LEN).
const timeWait = 60

// withClosing is how many connections fit where so many do, if each that is closed
// takes the room of one for so many seconds longer. As many of them are closed a
// second as the plan says, or in proportion of fewer.
func (x *exam) withClosing(room, seconds int64) int64 {
	n := int64(x.p.Connections)
	return mulDiv(room, n, satAdd(n, satMul(int64(x.p.Closing), seconds)))
}

var _ = wall((*exam).sources)

// sources is whether the machine has the addresses that were asked for.
func (x *exam) sources() *Wall {
	if !x.side(Client) || len(x.p.Sources) == 0 || len(x.f.Interfaces) == 0 {
		return nil
	}
	w := &Wall{
		Name: "sources", Side: Client, What: "source addresses that this machine has", Holds: Unlimited,
		Effect: "EADDRNOTAVAIL, \"cannot assign requested address\", from bind(2)",
		Source: "https://man7.org/linux/man-pages/man7/ip.7.html",
	}
	here := make(map[netip.Addr]bool)
	for _, on := range x.f.Interfaces {
		for _, p := range on.Addrs {
			here[p.Addr().Unmap().WithZone("")] = true
		}
	}
	missing, shared := 0, ""
	for i, s := range x.p.Sources {
		if s = s.Unmap().WithZone(""); here[s] || s.Is4() && s.IsLoopback() {
			continue
		}
		if missing++; missing == 1 {
			w.Holds = int64(i) // connections are spread over all, from the first on
		}
		if on := x.leading(); on != nil && on.reaches(s) && shared == "" {
			shared = fmt.Sprintf("%s/%d dev %s", s, s.BitLen(), on.Name)
		} else if on != nil && missing <= maxAdded {
			w.Changes = append(w.Changes, Change{Kind: Address, Name: on.Name, To: netip.PrefixFrom(s, s.BitLen()).String()})
		}
	}
	w.Present = fmt.Sprintf("%d of %d", len(x.p.Sources)-missing, len(x.p.Sources))
	switch {
	case !x.near(w):
		w.Changes = nil
		return w
	case missing > maxAdded || len(w.Changes) == 0:
		w.Changes, w.Advice = nil, "give an interface these addresses, or name others (--src)"
	}
	if shared != "" {
		w.Changes = nil
		w.Advice = "name other addresses (--src); or, if no other host of the network has those that are missing, add each: `ip addr add " + shared + "`"
	}
	w.Needs = fmt.Sprint(len(x.p.Sources))
	return w
}

// maxAdded is the most addresses that are added one by one.
const maxAdded = 256
