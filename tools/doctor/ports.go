package doctor

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/myriad-go/myriad/internal/format"
)

// A client's connection uses a port of net.ipv4.ip_local_port_range, once per pair of source address and target.

const (
	rangeName    = "net.ipv4.ip_local_port_range"
	reservedName = "net.ipv4.ip_local_reserved_ports"

	ipPage = "https://docs.kernel.org/networking/ip-sysctl.html"

	// loopbackSources is the number of addresses of 127.0.0.0/8 that the load generator can use without --src.
	loopbackSources = 254 << 16
)

type portRange struct {
	low, high int64
	taken     map[int64]bool
}

// countUsablePorts returns the number of ports in the range that connect(2) can assign.
func (r portRange) countUsablePorts() int64 {
	n := r.high - r.low + 1
	// connect(2) never assigns the last port of an odd number (__inet_hash_connect in the kernel).
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

func (x *analysis) portRangeWithTakenPorts() (_ portRange, known bool) {
	ends, ok := x.nonNegativeSysctlNumbers(rangeName, 2)
	if !ok || ends[0] > ends[1] || ends[1] > 65535 {
		return portRange{}, false
	}
	r := portRange{low: ends[0], high: ends[1]}
	r.taken, _ = parsePortListSkippingInvalid(x.f.Sysctls[reservedName])
	for _, port := range x.f.Sockets.Ports {
		r.taken[int64(port)] = true
	}
	for _, port := range x.localServerPorts() {
		r.taken[int64(port)] = true
	}
	return r, true
}

func (x *analysis) localServerPorts() []uint16 {
	var ports []uint16
	for _, t := range x.p.Targets {
		if x.isSideLocal(Server) && !slices.Contains(ports, t.Port()) {
			ports = append(ports, t.Port())
		}
	}
	slices.Sort(ports)
	return ports
}

// parsePortListSkippingInvalid parses a list such as "8080,9000-9010". If an item of the list is invalid, it skips the
// item and returns false for allValid.
func parsePortListSkippingInvalid(text string) (ports map[int64]bool, allValid bool) {
	ports, allValid = make(map[int64]bool), true
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
			allValid = false
			continue
		}
		for port := first; port <= last; port++ {
			ports[int64(port)] = true
		}
	}
	return ports, allValid
}

func formatPortList(ports map[int64]bool) string {
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

func (x *analysis) countSourceTargetPairs() (pairs int64, sourcesText string) {
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
	case x.targetsLoopback() && isIPv4(x.p.Targets[0].Addr()):
		n, where = loopbackSources, " of 127.0.0.0/8"
	default:
		n = 1
	}
	return saturatingMul(n, int64(len(targets))), format.Plural(n, "source address", "source addresses") + where
}

// clientPorts returns the client's port range, the number of pairs of a source address and a target, and a description
// of the sources. If the client is not on this machine, or if the port range is unknown, ok is false.
func (x *analysis) clientPorts() (r portRange, pairs int64, sourcesText string, ok bool) {
	r, ok = x.portRangeWithTakenPorts()
	if !ok || !x.isSideLocal(Client) {
		return r, 0, "", false
	}
	pairs, sourcesText = x.countSourceTargetPairs()
	return r, pairs, sourcesText, true
}

var _ = registerWall(Wall{
	Name: "ports", Side: Client, What: "ports to connect from (" + rangeName + ") × source addresses × targets",
	Effect: "EADDRNOTAVAIL, \"cannot assign requested address\", from the client's connect(2)",
	Source: ipPage + "#ip-variables",
}, func(x *analysis, w *Wall) bool {
	r, pairs, sources, ok := x.clientPorts()
	if !ok {
		return false
	}
	w.Present = fmt.Sprintf("%d-%d: %s × %s × %s", r.low, r.high, format.Count(r.countUsablePorts()), sources, format.Plural(int64(len(x.p.Targets)), "target", "targets"))
	w.Holds = saturatingMul(r.countUsablePorts(), pairs)
	if x.isExceededByPlan(w) {
		x.requireWiderPortsOrAdvise(w, r, x.n, pairs)
	}
	return true
},
	sysctlInfo{name: rangeName, isAmount: true, perNamespace: true, kubernetesSafe: true, defaultValue: "32768 60999"},
	sysctlInfo{name: reservedName, perNamespace: true, kubernetesSafe: true},
	sysctlInfo{name: "net.ipv4.ip_unprivileged_port_start", perNamespace: true, kubernetesSafe: true})

// requireWiderPortsOrAdvise adds changes to w that widen the range of client ports. If no range is wide enough, it adds
// advice instead. portsNeeded is the number of ports that the plan needs for all pairs of a source address and a target
// together.
func (x *analysis) requireWiderPortsOrAdvise(w *Wall, r portRange, portsNeeded, sourceTargetPairs int64) {
	each := ceilDiv(portsNeeded, max(sourceTargetPairs, 1))
	lowest := min(x.lowestUsablePort(), r.low)
	for _, low := range []int64{16384, 10240, lowest} {
		wide := portRange{low: max(min(low, r.low), lowest), high: 65535, taken: r.taken}
		if sourceTargetPairs > 0 && wide.countUsablePorts() >= each {
			w.Needs = fmt.Sprintf("%d-%d", wide.low, wide.high)
			w.Changes = append(w.Changes, x.changesReservingServerPorts(wide)...)
			w.Changes = append(w.Changes, x.sysctlChange(rangeName, fmt.Sprintf("%d %d", wide.low, wide.high)))
			return
		}
	}
	widest := portRange{low: lowest, high: 65535, taken: r.taken}
	enough := ceilDiv(portsNeeded, max(widest.countUsablePorts(), 1))
	w.Needs = fmt.Sprintf("sources × targets: %s", format.Count(enough))
	w.Advice = fmt.Sprintf("widen the range (`sysctl -w %s='%d 65535'`), and connect from more addresses (--src) or to more targets, "+
		"so that sources × targets is %s; it is %s", rangeName, lowest, format.Count(enough), format.Count(sourceTargetPairs))
	w.Changes = nil
}

// lowestUsablePort returns the lowest port at which the range of client ports may begin. This is
// ip_unprivileged_port_start, but at least 1024.
func (x *analysis) lowestUsablePort() int64 {
	first, _ := x.sysctlNumber("net.ipv4.ip_unprivileged_port_start")
	return min(max(first, 1024), 65535)
}

// changesReservingServerPorts returns the changes that are necessary before the range of client ports becomes wide.
// They reserve the ports of servers on this machine, so that the kernel does not assign these ports to clients.
func (x *analysis) changesReservingServerPorts(wide portRange) []Change {
	reserved, _ := parsePortListSkippingInvalid(x.f.Sysctls[reservedName])
	before := len(reserved)
	for _, port := range x.localServerPorts() {
		reserved[int64(port)] = reserved[int64(port)] || int64(port) >= wide.low
	}
	present, known := x.portRangeWithTakenPorts()
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
	return []Change{x.sysctlChange(reservedName, formatPortList(reserved))}
}

var _ = registerWall(Wall{
	Name: "port-search", Side: Client, Soft: true, What: "half of those ports: beyond it the kernel searches long for a free one",
	Effect: "connect(2) takes processor time: with two thirds in use it is ten times slower",
	Source: ipPage + "#ip-variables",
}, func(x *analysis, w *Wall) bool {
	r, pairs, sources, ok := x.clientPorts()
	if !ok || pairs >= loopbackSources {
		return false
	}
	half := r.countUsablePorts() / 2
	w.Present, w.Holds = fmt.Sprintf("%s × %s", format.Count(half), sources), saturatingMul(half, pairs)
	if x.isExceededByPlan(w) {
		w.Needs = fmt.Sprintf("%s source addresses", format.Count(ceilDiv(x.n, max(half, 1))))
		w.Advice = "connect from more addresses (--src), or to more targets"
	}
	return true
})
