package capacity

import (
	"fmt"
	"math"
	"net/netip"
	"sort"
	"time"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/tools/doctor"
)

// Goal describes the connections to serve and the machines to use for them.
type Goal struct {
	// Connections is the total number of connections, from 1 to MaxConnections.
	Connections int64 `json:"connections"`
	// Rate is the number of messages per second on each connection, from 0 to 1,000,000. Messages and answers have Size
	// bytes each, from 1 byte to 1 MiB.
	Rate float64 `json:"rate"`
	Size int     `json:"size"`
	TLS  bool    `json:"tls"`
	// Unread is the number of bytes per connection that wait in the kernel, from 0 to 1 GiB.
	Unread int `json:"unread"`
	// Memory, Cores and Network describe one machine: bytes, processors, and bits per second in each direction.
	Memory  int64   `json:"memory"`
	Cores   int     `json:"cores"`
	Network float64 `json:"network"`
	// Free is the fraction of each resource to keep free, from 0 to 0.95.
	Free float64 `json:"free"`
	// Spare is the number of machines that may be down at the same time, from 0 to 1,000.
	Spare int `json:"spare"`
	// MaxPerMachine limits the connections per machine. 0 means no limit.
	MaxPerMachine int64 `json:"most,omitempty"`
	// Loops is the number of event loops of a server. 0 means the server's default.
	Loops int `json:"loops,omitempty"`
	// Return is the time in which the clients of a failed machine reconnect to others.
	Return time.Duration `json:"return"`
}

// Validate returns an error if a value of the goal is invalid. The error contains the name of the flag of "myriad plan"
// that sets the value.
func (g *Goal) Validate() error {
	for _, x := range []struct {
		flag             string
		got, least, most float64
	}{
		{"connections", float64(g.Connections), 1, MaxConnections},
		{"rate", g.Rate, 0, 1e6},
		{"size", float64(g.Size), 1, 1 << 20},
		{"unread", float64(g.Unread), 0, 1 << 30},
		{"memory", float64(g.Memory), 1 << 28, 1 << 50},
		{"cores", float64(g.Cores), 1, 1 << 16},
		{"network", g.Network, 1e6, 1e15},
		{"free", g.Free * 100, 0, 95},
		{"spare", float64(g.Spare), 0, 1000},
		{"loops", float64(g.Loops), 0, 1024},
		{"return", g.Return.Seconds(), 0.001, 86400},
	} {
		if x.got < x.least || x.got > x.most {
			unit := map[string]string{"free": " %", "return": " s", "memory": " bytes", "network": " bit/s"}[x.flag]
			return fmt.Errorf("--%s is %s%s; expected %s to %s", x.flag, format.Rounded(x.got), unit, format.Rounded(x.least), format.Rounded(x.most))
		}
	}
	return nil
}

const MaxConnections = 1_000_000_000_000

// Plan describes the machines that a goal requires. The field Machines counts all machines. The other figures describe
// one machine at a time when Goal.Spare of the other machines are down, unless a field states otherwise.
type Plan struct {
	Goal Goal `json:"goal"`
	// Machines is the number of machines, including spare ones.
	Machines int64 `json:"machines"`
	// Each is the number of connections per machine while Goal.Spare machines are down; EachNow is the number while
	// none is down. Holds is the maximum number of connections of a machine. Limit is the resource that limits Holds.
	Each    int64  `json:"each"`
	EachNow int64  `json:"each_now"`
	Holds   int64  `json:"holds"`
	Limit   string `json:"limit"`
	// Loops is the number of event loops of the server on a machine. Cores is the number of processors that the server
	// keeps busy. IdleCores is the part of Cores for idle connections, or 0 if unknown.
	Loops     int     `json:"loops"`
	Cores     float64 `json:"cores"`
	IdleCores float64 `json:"idle_cores,omitempty"`
	// User is the memory of the server process. Kernel is the kernel memory for its sockets.
	User   float64 `json:"user"`
	Kernel float64 `json:"kernel"`
	// Descriptors is the LimitNOFILE (a systemd setting) to configure.
	Descriptors int64 `json:"descriptors"`
	// Sources is the number of source addresses that a proxy needs to open all of the machine's connections to one
	// port, or 0 if unknown.
	Sources int64 `json:"sources"`
	// In and Out are the traffic of the machine's interface.
	In  Flow `json:"in"`
	Out Flow `json:"out"`
	// Returning is the rate of new connections to a machine after another machine has failed. ReturnCores is the number
	// of processors needed to accept them.
	Returning   float64 `json:"returning"`
	ReturnCores float64 `json:"return_cores"`
}

// Flow is the traffic of an interface in one direction.
type Flow struct {
	Bits    float64 `json:"bits"` // bits per second, including all headers
	Packets float64 `json:"packets"`
}

// Planner makes plans from a measurement.
type Planner struct {
	Measured MeasuredCosts
	// Facts describes the machine of the measurement. Package doctor uses defaults for fields that are zero.
	Facts *doctor.Facts
}

func (p *Planner) planOneMachine(g *Goal, conns int64) Plan {
	loops := p.givenOrPredictedServerLoops(g)
	rate := float64(conns) * g.Rate
	x := Plan{Goal: *g, Each: conns, Loops: loops}
	x.Cores = p.Measured.PredictCores(float64(conns), rate, loops)
	x.IdleCores = p.Measured.IdleCoresPerConn * float64(conns)
	x.User = p.Measured.PredictUserMemory(float64(conns), rate)
	x.Kernel = p.serverKernelBytesPerConn(g) * float64(conns)
	x.In, x.Out = g.predictNetworkTraffic(rate)
	return x
}

func (p *Planner) givenOrPredictedServerLoops(g *Goal) int {
	if g.Loops > 0 {
		return g.Loops
	}
	f := *p.Facts
	f.Machine.CPUs, f.Process.Nofile = g.Cores, doctor.Rlimit{Soft: -1, Hard: -1}
	cost, err := doctor.PredictCosts(&f, p.newDoctorPlan(g, doctor.Server, 1))
	if err != nil {
		return 0
	}
	return cost.Loops
}

func (p *Planner) newDoctorPlan(g *Goal, side doctor.Side, conns int64) doctor.Plan {
	return doctor.Plan{Connections: int(min(max(conns, 1), 1<<30)), Side: side, Model: p.Measured.Model, Unread: g.Unread}
}

func (p *Planner) serverKernelBytesPerConn(g *Goal) float64 {
	cost := func(side doctor.Side, unread int) float64 {
		plan := p.newDoctorPlan(g, side, 1)
		plan.Unread = unread
		c, _ := doctor.PredictCosts(p.Facts, plan) // valid: Goal.Validate has checked the values
		return float64(c.Kernel)
	}
	server := cost(doctor.Server, 0)
	each := server
	if both := cost(doctor.Both, 0); p.Measured.Kernel > 0 && both > 0 {
		each = p.Measured.Kernel * server / both
	}
	return each + cost(doctor.Server, g.Unread) - server
}

const (
	// segmentBytes is the payload of a TCP segment over Ethernet. wireBytes is its overhead on the wire.
	segmentBytes = 1448
	wireBytes    = 20 + 32 + 14 + 24
	// TLS 1.3 adds recordBytes bytes to each record of at most maxRecordBytes bytes.
	recordBytes, maxRecordBytes = 22, 16 << 10
)

// predictNetworkTraffic returns the traffic of a server that echoes messages, including acknowledgments.
func (g *Goal) predictNetworkTraffic(messagesPerSecond float64) (in, out Flow) {
	size := float64(g.Size)
	if g.TLS {
		size += recordBytes * math.Ceil(size/maxRecordBytes)
	}
	segments := math.Ceil(size / segmentBytes)
	acks := math.Ceil(segments / 2)
	in.Packets, out.Packets = messagesPerSecond*(segments+acks), messagesPerSecond*(segments+acks-1)
	in.Bits, out.Bits = 8*(messagesPerSecond*size+wireBytes*in.Packets), 8*(messagesPerSecond*size+wireBytes*out.Packets)
	return in, out
}

func (p *Planner) limitsAndUseOfMachine(g *Goal, conns int64) []machineLimit {
	x := p.planOneMachine(g, conns)
	usable := 1 - g.Free
	all := []machineLimit{
		{"memory", x.User + x.Kernel, float64(g.Memory) * usable},
		{"CPU", x.Cores, float64(g.Cores) * usable},
		{"network", max(x.In.Bits, x.Out.Bits), g.Network * usable},
		{"descriptors of one process", float64(conns), 1<<31 - 64 - 1024},
	}
	if g.MaxPerMachine > 0 {
		all = append(all, machineLimit{"what is asked for", float64(conns), float64(g.MaxPerMachine)})
	}
	return all
}

type machineLimit struct {
	name      string
	used, max float64
}

// maxConnsPerMachine returns the maximum number of connections per machine, and the name of the limiting resource.
func (p *Planner) maxConnsPerMachine(g *Goal) (n int64, limitName string) {
	exceeded := func(n int64) string {
		for _, l := range p.limitsAndUseOfMachine(g, n) {
			if l.used > l.max {
				return l.name
			}
		}
		return ""
	}
	n = int64(sort.Search(math.MaxInt32, func(n int) bool { return exceeded(int64(n)+1) != "" }))
	return n, exceeded(n + 1)
}

// PlanMachines returns a plan for a goal. Goal.TLS must be the same as in the measurement. PlanMachines returns an
// error if the goal is invalid or a machine cannot hold even one connection.
func (p *Planner) PlanMachines(g Goal) (*Plan, error) {
	if err := g.Validate(); err != nil {
		return nil, err
	}
	holds, stops := p.maxConnsPerMachine(&g)
	if holds < 1 {
		return nil, fmt.Errorf("a machine with %s of memory and %d processors cannot hold any connection: %s; expected a larger machine, or a lower --free", format.Bytes(float64(g.Memory)), g.Cores, stops)
	}
	needed := ceilDiv(g.Connections, holds)
	x := p.planOneMachine(&g, ceilDiv(g.Connections, needed))
	x.Machines = needed + int64(g.Spare)
	x.EachNow = ceilDiv(g.Connections, x.Machines)
	x.Holds, x.Limit = holds, stops
	cost, err := doctor.PredictCosts(p.Facts, p.newDoctorPlan(&g, doctor.Server, x.Each))
	if err != nil {
		return nil, err
	}
	x.Descriptors = cost.Descriptors
	x.Sources = p.proxySourceAddrsNeededOrZero(&g, x.Each)
	if x.Machines > 1 {
		x.Returning = float64(x.EachNow) / float64(x.Machines-1) / g.Return.Seconds()
		x.ReturnCores = x.Returning * p.Measured.Connect.Seconds()
	}
	return &x, nil
}

// proxySourceAddrsNeededOrZero returns the number of source addresses that a proxy needs to open conns connections to
// one port of a server. It returns 0 if the number is unknown.
func (p *Planner) proxySourceAddrsNeededOrZero(g *Goal, conns int64) int64 {
	plan := p.newDoctorPlan(g, doctor.Client, conns)
	proxy := netip.AddrFrom4([4]byte{192, 0, 2, 1}) // any address will do; this one is for documentation
	plan.Sources, plan.Targets = []netip.Addr{proxy}, []netip.AddrPort{netip.AddrPortFrom(proxy.Next(), 443)}
	r, err := doctor.Examine(p.Facts, plan)
	if err != nil {
		return 0
	}
	for _, w := range r.Walls {
		if w.Name == "ports" && w.Holds > 0 && w.Holds < doctor.Unlimited {
			return ceilDiv(conns, w.Holds)
		}
	}
	return 0
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }
