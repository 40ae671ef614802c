package doctor

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/myriad-go/myriad/internal/format"
)

// Side selects the end of the connections to examine.
type Side string

const (
	Server Side = "server" // accepts
	Client Side = "client" // connects
	Both   Side = "both"   // both, on this machine
)

// Plan is what the machine is to hold. The zero value of each field except Connections is a good
// default.
type Plan struct {
	// Connections is the number of connections, 1 to 1<<30.
	Connections int `json:"connections"`
	// Side is the examined side. Default Both.
	Side Side `json:"side"`
	// Model is the I/O model: "auto" (the default), "goroutine", "epoll" or "uring". Models with
	// loops exceed the descriptor limit with a descriptor table per loop. With Both it applies to
	// the server; the client is Myriad's generator with the best available model.
	Model string `json:"model"`
	// Processes is the number of worker processes of the server, 0 to 1,024. Default 0: one
	// process.
	Processes int `json:"processes"`
	// Backlog is the backlog that the listener requests. Default 0: as Go does, net.core.somaxconn.
	Backlog int `json:"backlog"`
	// Burst is how many connections may arrive while the server does not accept. Default 512: the
	// maximum of half-open connections of Myriad's generator.
	Burst int `json:"burst"`
	// Unread is how many bytes wait in the kernel for each connection, unread or unsent, at the
	// peak. Default 0: idle connections.
	Unread int `json:"unread"`
	// UserMemory is the memory of the process for each connection, in bytes, on each side. Default
	// 0: Myriad's under the Model.
	UserMemory int `json:"user_memory"`
	// Sources are the local addresses of the client, at most 65,536. Default none: as Myriad's
	// generator does, any of 127.0.0.0/8 for a target there, otherwise the one that the kernel
	// chooses.
	Sources []netip.Addr `json:"sources,omitempty"`
	// Targets are the addresses and ports of the server, all of one family, at most 1,024; each
	// source can use its ports once per target. Default: 127.0.0.1:9000.
	Targets []netip.AddrPort `json:"targets,omitempty"`
	// Closing is how many connections per second this side closes orderly, which leaves each in
	// TIME_WAIT for a minute. Default 0.
	Closing int `json:"closing"`
}

// The limits of a Plan.
const (
	maxConnections = 1 << 30
	maxProcesses   = 1024
	maxSources     = 1 << 16
	maxTargets     = 1024
)

// Validate returns an error that names the first invalid field and what was expected.
func (p *Plan) Validate() error {
	if !slices.Contains([]Side{"", Server, Client, Both}, p.Side) {
		return fmt.Errorf("doctor: Plan.Side is %q; expected server, client or both", p.Side)
	}
	if !slices.Contains([]string{"", auto, goroutine, epoll, uring}, p.Model) {
		return fmt.Errorf("doctor: Plan.Model is %q; expected auto, goroutine, epoll or uring", p.Model)
	}
	for _, n := range []struct {
		field            string
		got, least, most int
	}{
		{"Connections", p.Connections, 1, maxConnections},
		{"Processes", p.Processes, 0, maxProcesses},
		{"Backlog", p.Backlog, 0, math.MaxInt32},
		{"Burst", p.Burst, 0, maxConnections},
		{"Unread", p.Unread, 0, 1 << 30},
		{"UserMemory", p.UserMemory, 0, 1 << 30},
		{"Closing", p.Closing, 0, maxConnections},
		{"Sources", len(p.Sources), 0, maxSources},
		{"Targets", len(p.Targets), 0, maxTargets},
	} {
		if n.got < n.least || n.got > n.most {
			what := "is " + format.Count(n.got)
			if n.field == "Sources" || n.field == "Targets" {
				what = "has " + format.Count(n.got) + " addresses"
			}
			return fmt.Errorf("doctor: Plan.%s %s; expected %s to %s", n.field, what, format.Count(n.least), format.Count(n.most))
		}
	}
	return p.validateAddresses()
}

// validateAddresses returns an error unless every source can reach every target.
func (p *Plan) validateAddresses() error {
	targets := p.targetsOrDefault()
	for _, t := range targets {
		switch {
		case !t.IsValid() || t.Port() == 0 || t.Addr().IsUnspecified():
			return fmt.Errorf("doctor: Plan.Targets has %v; expected an address and a port, such as 127.0.0.1:9000", t)
		case isIPv4(t.Addr()) != isIPv4(targets[0].Addr()):
			return fmt.Errorf("doctor: Plan.Targets has %v beside %v; expected addresses of one family", t, targets[0])
		}
	}
	for _, s := range p.Sources {
		switch {
		case !s.IsValid() || s.IsUnspecified():
			return fmt.Errorf("doctor: Plan.Sources has %v; expected a local address, such as 127.0.0.2", s)
		case isIPv4(s) != isIPv4(targets[0].Addr()):
			return fmt.Errorf("doctor: Plan.Sources has %v, which can't reach %v; expected an address of the same family", s, targets[0])
		}
	}
	return nil
}

func isIPv4(a netip.Addr) bool { return a.Unmap().Is4() }

func (p *Plan) targetsOrDefault() []netip.AddrPort {
	if len(p.Targets) > 0 {
		return p.Targets
	}
	return []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), defaultPort)}
}

const (
	// defaultPort is the default port of myriad serve.
	defaultPort  = 9000
	defaultBurst = 512
)

// withDefaults fills in the defaults that do not depend on the machine.
func (p Plan) withDefaults() Plan {
	p.Side = cmp.Or(p.Side, Both)
	p.Model = cmp.Or(p.Model, auto)
	p.Burst = cmp.Or(p.Burst, defaultBurst)
	p.Targets = p.targetsOrDefault()
	return p
}
