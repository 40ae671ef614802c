package doctor

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/myriad-go/myriad/internal/format"
)

// Side is the end of the connections to examine: the server's end, the client's end, or both.
type Side string

const (
	Server Side = "server" // the end that accepts
	Client Side = "client" // the end that connects
	Both   Side = "both"   // both ends on this machine
)

// Plan describes the connections that the machine must hold. Each zero field except Connections has a default value.
type Plan struct {
	// Connections is the number of connections, from 1 to 1<<30.
	Connections int `json:"connections"`
	// Side is the end to examine. The default is Both.
	Side Side `json:"side"`
	// Model is the I/O model: "auto" (the default), "goroutine", "epoll" or "uring". Models with event loops can exceed
	// the descriptor limit by giving each loop a descriptor table. If both sides are examined, Model is the server's
	// model; the client is Myriad's generator with the best available model.
	Model string `json:"model"`
	// Processes is the number of worker processes of the server, up to 1,024. The default 0 means one process.
	Processes int `json:"processes"`
	// Backlog is the backlog that the listener requests. The default 0 means net.core.somaxconn, as in Go.
	Backlog int `json:"backlog"`
	// Burst is the number of connections that may arrive while the server does not accept. The default is 512, which is
	// the maximum number of half-open connections of Myriad's generator.
	Burst int `json:"burst"`
	// Unread is the peak number of bytes per connection that wait in the kernel, unread or unsent. The default is 0.
	Unread int `json:"unread"`
	// UserMemory is the process memory per connection, in bytes, on each side. The default 0 means the memory that
	// Myriad needs with the chosen Model.
	UserMemory int `json:"user_memory"`
	// Sources contains the client's local addresses, at most 65,536. By default, connections to a target in 127.0.0.0/8
	// use as many addresses of that network as necessary, like those of Myriad's generator. For other targets, the
	// kernel chooses the address.
	Sources []netip.Addr `json:"sources,omitempty"`
	// Targets contains the addresses and ports of the server: at most 1,024, all IPv4 or all IPv6. A source can use
	// each of its ports once per target. The default is 127.0.0.1:9000.
	Targets []netip.AddrPort `json:"targets,omitempty"`
	// Closing is the number of connections per second that the examined side closes in an orderly way. Each closed
	// connection stays in TIME_WAIT for a minute. The default is 0.
	Closing int `json:"closing"`
}

const (
	maxConnections = 1 << 30
	maxProcesses   = 1024
	maxSources     = 1 << 16
	maxTargets     = 1024
)

// Validate checks the fields. If some are invalid, the error names the first invalid field and its valid values.
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

func (p *Plan) validateAddresses() error {
	targets := p.targetsOrDefault()
	for _, t := range targets {
		switch {
		case !t.IsValid() || t.Port() == 0 || t.Addr().IsUnspecified():
			return fmt.Errorf("doctor: Plan.Targets contains %v; expected an address and a port, such as 127.0.0.1:9000", t)
		case isIPv4(t.Addr()) != isIPv4(targets[0].Addr()):
			return fmt.Errorf("doctor: Plan.Targets contains %v and %v; expected addresses of the same family", t, targets[0])
		}
	}
	for _, s := range p.Sources {
		switch {
		case !s.IsValid() || s.IsUnspecified():
			return fmt.Errorf("doctor: Plan.Sources contains %v; expected a local address, such as 127.0.0.2", s)
		case isIPv4(s) != isIPv4(targets[0].Addr()):
			return fmt.Errorf("doctor: Plan.Sources contains %v, which cannot reach %v; expected an address of the same family", s, targets[0])
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
	defaultPort  = 9000
	defaultBurst = 512
)

func (p Plan) withDefaults() Plan {
	p.Side = cmp.Or(p.Side, Both)
	p.Model = cmp.Or(p.Model, auto)
	p.Burst = cmp.Or(p.Burst, defaultBurst)
	p.Targets = p.targetsOrDefault()
	return p
}
