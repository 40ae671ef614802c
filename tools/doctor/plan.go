package doctor

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/myriad-go/myriad/internal/format"
)

// Side selects the end of the connections whose walls are examined.
type Side string

// The sides of a connection.
const (
	Server Side = "server" // who accepts
	Client Side = "client" // who connects
	Both   Side = "both"   // both, on this one machine
)

// Plan says what the machine is to hold. The zero value of each field but
// Connections is a good default.
type Plan struct {
	// Connections is how many connections are wanted, 1 to 1<<30.
	Connections int `json:"connections"`
	// Side is whose walls are examined. Default Both.
	Side Side `json:"side"`
	// Model is the I/O model: "auto" (the default), "goroutine", "epoll" or
	// "uring". Models with loops get past the limit of descriptors with a
	// descriptor table for each loop. With Both it is the server's: the client
	// is Myriad's generator, under the best that can run.
	Model string `json:"model"`
	// Processes is how many worker processes serve, 0 to 1,024. Default 0: one
	// process.
	Processes int `json:"processes"`
	// Backlog is what the listener asks for. Default 0: as Go does,
	// net.core.somaxconn.
	Backlog int `json:"backlog"`
	// Burst is how many connections may arrive while the server does not
	// accept. Default 512: what Myriad's generator has half open at most.
	Burst int `json:"burst"`
	// Unread is how many bytes wait in the kernel for each connection, unread
	// or unsent, when most do. Default 0: idle connections.
	Unread int `json:"unread"`
	// UserMemory is the memory of the process for each connection, in bytes,
	// on each side. Default 0: what Myriad takes under the Model.
	UserMemory int `json:"user_memory"`
	// Sources are the local addresses that the client connects from. Default
	// none: as Myriad's generator does, any of 127.0.0.0/8 for a Target
	// there, otherwise the one that the kernel chooses. At most 65,536.
	Sources []netip.Addr `json:"sources,omitempty"`
	// Targets are the servers' addresses and ports that the client connects
	// to, all of one family: each source has its ports anew for each of them.
	// At most 1,024. Default: 127.0.0.1:9000.
	Targets []netip.AddrPort `json:"targets,omitempty"`
	// Closing is how many connections a second are closed in order by this
	// side, which leaves each in TIME_WAIT for a minute. Default 0.
	Closing int `json:"closing"`
}

// The bounds of a Plan.
const (
	maxConnections = 1 << 30
	maxProcesses   = 1024
	maxSources     = 1 << 16
	maxTargets     = 1024
)

// Validate says which field of the plan makes no sense, and what was expected.
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

// validateAddresses reports whether every source can reach every target.
func (p *Plan) validateAddresses() error {
	targets := p.targetsOrDefault()
	for _, t := range targets {
		switch {
		case !t.IsValid() || t.Port() == 0 || t.Addr().IsUnspecified():
			return fmt.Errorf("doctor: Plan.Targets has %v; expected an address and a port, such as 127.0.0.1:9000", t)
		case is4(t.Addr()) != is4(targets[0].Addr()):
			return fmt.Errorf("doctor: Plan.Targets has %v beside %v; expected addresses of one family", t, targets[0])
		}
	}
	for _, s := range p.Sources {
		switch {
		case !s.IsValid() || s.IsUnspecified():
			return fmt.Errorf("doctor: Plan.Sources has %v; expected a local address, such as 127.0.0.2", s)
		case is4(s) != is4(targets[0].Addr()):
			return fmt.Errorf("doctor: Plan.Sources has %v, which can't reach %v; expected an address of the same family", s, targets[0])
		}
	}
	return nil
}

func is4(a netip.Addr) bool { return a.Unmap().Is4() }

// targetsOrDefault are those of the plan, or the default.
func (p *Plan) targetsOrDefault() []netip.AddrPort {
	if len(p.Targets) > 0 {
		return p.Targets
	}
	return []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), defaultPort)}
}

const (
	// defaultPort is where myriad serve listens.
	defaultPort  = 9000
	defaultBurst = 512
)

// withDefaults is the plan with the defaults of the fields that are zero, but for those
// that depend on the machine.
func (p Plan) withDefaults() Plan {
	p.Side = cmp.Or(p.Side, Both)
	p.Model = cmp.Or(p.Model, auto)
	p.Burst = cmp.Or(p.Burst, defaultBurst)
	p.Targets = p.targetsOrDefault()
	return p
}
