package doctor

import (
	"fmt"
	"slices"
)

// This file has the walls of interfaces.

var _ = wall((*exam).loopback)

// loopback is whether connections within the machine are possible at all: in a new
// network namespace they aren't.
func (x *exam) loopback() *Wall {
	if !x.toLoopback() {
		return nil
	}
	i := slices.IndexFunc(x.f.Interfaces, func(on Interface) bool { return on.Loopback })
	if i < 0 {
		return nil
	}
	lo := x.f.Interfaces[i]
	w := &Wall{
		Name: "loopback", What: "the loopback interface", Present: lo.Name + " is up", Holds: Unlimited,
		Effect: "ENETUNREACH, \"network is unreachable\", or ETIMEDOUT from connect(2)",
		Source: "https://man7.org/linux/man-pages/man8/ip-link.8.html",
	}
	if !lo.Up {
		w.Holds, w.Present, w.Needs = 0, lo.Name+" is down", "up"
		w.Changes = []Change{{Kind: Link, Name: lo.Name, From: "down", To: "up"}}
	}
	return w
}

var _ = wall((*exam).route)

// route is whether an interface leads anywhere else.
func (x *exam) route() *Wall {
	if x.toLoopback() || len(x.f.Interfaces) == 0 {
		return nil
	}
	w := &Wall{
		Name: "interface", What: "an interface that is up and has an address of the target's family", Holds: Unlimited,
		Effect: "ENETUNREACH, \"network is unreachable\", from connect(2)",
		Source: "https://man7.org/linux/man-pages/man8/ip-address.8.html",
	}
	if on := x.leading(); on != nil {
		w.Present = on.Name
		return w
	}
	w.Present, w.Holds, w.Needs = "none", 0, "one"
	w.Advice = "give an interface an address (ip addr add) and set it up (ip link set)"
	return w
}

var _ = wall((*exam).queues)

// queues means that an interface can't spread its packets over all processors.
func (x *exam) queues() *Wall {
	on := x.leading()
	if x.toLoopback() || on == nil || on.Receive == 0 || on.Receive >= x.f.Machine.CPUs {
		return nil
	}
	return &Wall{
		Name: "queues", Soft: true, What: "receive queues of " + on.Name,
		Present: fmt.Sprintf("%d, for %d processors", on.Receive, x.f.Machine.CPUs), Holds: Unlimited,
		Effect: "so many processors take packets from it; receive packet steering (RPS) spreads them further",
		Source: "https://docs.kernel.org/networking/scaling.html",
	}
}
