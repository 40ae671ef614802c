package faults

import (
	"net/netip"
	"sync/atomic"
	"time"
)

// Weather is what a Link does to packets, in both directions.
type Weather struct {
	// Loss is how many of all packets are lost, from 0 to 1.
	Loss float64
	// Delay is how long a packet takes at least, Jitter how much longer it
	// takes at most. Packets overtake each other when Jitter is more than the
	// time between them.
	Delay, Jitter time.Duration
	// Seed is for the choice: with the same packets it is the same. The one
	// of NewLink counts.
	Seed uint64
}

// LinkCounts say what has happened to packets of both directions.
type LinkCounts struct {
	// Passed have arrived, Lost have been lost by Weather, Cut since Cut;
	// Overflowed had no room on the link. Overtaken were sent before another
	// that arrived earlier.
	Passed, Lost, Cut, Overflowed, Overtaken int64
}

// The addresses at the ends of a Link.
var (
	ClientAddr = netip.AddrFrom4([4]byte{10, 77, 0, 1})
	ServerAddr = netip.AddrFrom4([4]byte{10, 77, 0, 2})
)

// Link is two networks, one for clients and one for a server, and the link
// between them, whose packets go through this process: so no queueing discipline
// of the kernel, such as netem, is needed. It takes Linux, root and /dev/net/tun.
type Link struct {
	Clients, Server *Namespace

	weather atomic.Pointer[Weather]
	cut     atomic.Bool
	counts  linkCounts
	ends    linkEnds
}

type linkCounts struct{ passed, lost, cut, overflowed, overtaken atomic.Int64 }

// Counts is safe for concurrent use.
func (l *Link) Counts() LinkCounts {
	c := &l.counts
	return LinkCounts{
		Passed: c.passed.Load(), Lost: c.lost.Load(), Cut: c.cut.Load(),
		Overflowed: c.overflowed.Load(), Overtaken: c.overtaken.Load(),
	}
}

// Set changes the weather for the packets that come.
func (l *Link) Set(w Weather) { l.weather.Store(&w) }

// Cut loses every packet from now on, without a word to either side.
func (l *Link) Cut() { l.cut.Store(true) }

// Mend undoes Cut.
func (l *Link) Mend() { l.cut.Store(false) }
