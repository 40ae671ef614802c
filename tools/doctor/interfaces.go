package doctor

import (
	"fmt"
	"net/netip"
	"slices"
)

func (x *analysis) targetsLoopback() bool { return x.p.Targets[0].Addr().Unmap().IsLoopback() }

// likelyInterfaceToTarget returns the interface that probably leads to the first target. It considers only interfaces
// that are up, are not loopback and have a global address of the target's family. From these, it returns one whose
// network contains the target or, if there is none, the first interface. If no interface qualifies, it returns nil.
func (x *analysis) likelyInterfaceToTarget() *Interface {
	target := x.p.Targets[0].Addr().Unmap().WithZone("")
	var first *Interface
	for i := range x.f.Interfaces {
		on := &x.f.Interfaces[i]
		if !on.Up || on.Loopback || len(x.globalAddrsOfTargetFamily(on)) == 0 {
			continue
		}
		if on.networkContains(target) {
			return on
		}
		if first == nil {
			first = on
		}
	}
	return first
}

func (i *Interface) networkContains(a netip.Addr) bool {
	return slices.ContainsFunc(i.Addrs, func(p netip.Prefix) bool { return p.Contains(a) })
}

func (x *analysis) globalAddrsOfTargetFamily(iface *Interface) []netip.Addr {
	var own []netip.Addr
	for i := 0; iface != nil && i < len(iface.Addrs); i++ {
		a := iface.Addrs[i].Addr().Unmap()
		if isIPv4(a) == isIPv4(x.p.Targets[0].Addr()) && a.IsGlobalUnicast() {
			own = append(own, a)
		}
	}
	return own
}

var _ = registerWall(Wall{
	Name: "loopback", What: "the loopback interface",
	Effect: "ENETUNREACH, \"network is unreachable\", or ETIMEDOUT from connect(2)",
	Source: "https://man7.org/linux/man-pages/man8/ip-link.8.html",
}, func(x *analysis, w *Wall) bool {
	i := slices.IndexFunc(x.f.Interfaces, func(on Interface) bool { return on.Loopback })
	if i < 0 || !x.targetsLoopback() {
		return false
	}
	lo := x.f.Interfaces[i]
	w.Present = lo.Name + " is up"
	if !lo.Up { // as in a new network namespace
		w.Holds, w.Present, w.Needs = 0, lo.Name+" is down", "up"
		w.Changes = []Change{{Kind: Link, Name: lo.Name, From: "down", To: "up"}}
	}
	return true
})

var _ = registerWall(Wall{
	Name: "interface", What: "an interface that is up and has an address of the target's family",
	Effect: "ENETUNREACH, \"network is unreachable\", from connect(2)",
	Source: "https://man7.org/linux/man-pages/man8/ip-address.8.html",
}, func(x *analysis, w *Wall) bool {
	if on := x.likelyInterfaceToTarget(); on != nil {
		w.Present = on.Name
	} else {
		w.Present, w.Holds, w.Needs = "none", 0, "one"
		w.Advice = "add an address to an interface (ip addr add) and set it up (ip link set)"
	}
	return !x.targetsLoopback() && len(x.f.Interfaces) > 0
})

var _ = registerWall(Wall{
	Name: "queues", Soft: true,
	Effect: "only that many processors receive its packets; receive packet steering (RPS) spreads them further",
	Source: "https://docs.kernel.org/networking/scaling.html",
}, func(x *analysis, w *Wall) bool {
	on := x.likelyInterfaceToTarget()
	if x.targetsLoopback() || on == nil || on.Receive == 0 || on.Receive >= x.f.Machine.CPUs {
		return false
	}
	w.What, w.Present = "receive queues of "+on.Name, fmt.Sprintf("%d, for %d processors", on.Receive, x.f.Machine.CPUs)
	return true
})

var _ = registerWall(Wall{
	Name: "sources", Side: Client, What: "source addresses that this machine has",
	Effect: "EADDRNOTAVAIL, \"cannot assign requested address\", from bind(2)",
	Source: "https://man7.org/linux/man-pages/man7/ip.7.html",
}, (*analysis).examineMissingSourceAddrs)

func (x *analysis) examineMissingSourceAddrs(w *Wall) (applies bool) {
	if !x.isSideLocal(Client) || len(x.p.Sources) == 0 || len(x.f.Interfaces) == 0 {
		return false
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
			w.Holds = int64(i) // connections use all sources in rotation, from the first on
		}
		if on := x.likelyInterfaceToTarget(); on != nil && on.networkContains(s) && shared == "" {
			shared = fmt.Sprintf("%s/%d dev %s", s, s.BitLen(), on.Name)
		} else if on != nil && missing <= maxAddedAddrs {
			w.Changes = append(w.Changes, Change{Kind: Address, Name: on.Name, To: netip.PrefixFrom(s, s.BitLen()).String()})
		}
	}
	w.Present = fmt.Sprintf("%d of %d", len(x.p.Sources)-missing, len(x.p.Sources))
	switch {
	case !x.isExceededByPlan(w):
		w.Changes = nil
		return true
	case missing > maxAddedAddrs || len(w.Changes) == 0:
		w.Changes, w.Advice = nil, "add these addresses to an interface, or use others (--src)"
	}
	if shared != "" {
		w.Changes = nil
		w.Advice = "use other addresses (--src); or, if no other host of the network has the missing ones, add each: `ip addr add " + shared + "`"
	}
	w.Needs = fmt.Sprint(len(x.p.Sources))
	return true
}

// maxAddedAddrs is the maximum number of addresses that Wall.Changes adds to an interface. If more addresses are
// missing, the Wall contains Advice instead.
const maxAddedAddrs = 256
