package load

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/tools/internal/procfs"
)

// halfOpen is the most attempts to connect that are under way at once, unless
// the connect rate is higher: then a second's worth.
const halfOpen = 512

// leastOrder is the least part of what is due that one loop gets: many loops share
// few processors, and it takes more to wake one than to connect.
const leastOrder = 16

// dialEvery is how often the dialer looks what is due. At 5,000 connections a
// second that is 10 at a time.
const dialEvery = 2 * time.Millisecond

// dialer starts connections at a rate. It works out what is due from the time
// since it last had nothing to do, so that a late tick is made up for and the rate
// holds over the whole.
type dialer struct {
	engine interface {
		Dial(engine.DialRequest) error
	}
	targets []target
	// plan says how many connections come from each source; it is gone
	// through again and again where connections replace others.
	plan []source
	rate int // a second, 0 for no bound
	ramp Ramp
	// connections is how many there are to be. With churn, those that are gone
	// make room for others, and so do, after a pause, attempts that failed;
	// without it the dialer ends when all have been started.
	connections  int
	churn        bool
	gone, failed func() int64
	// loops is how many loops the engine deals orders out to, in turn; what
	// is due is ordered in that many parts, so that each gets its share.
	loops int
	// settled counts attempts that have succeeded or failed.
	settled func() int64

	issued int
	orders int           // so far, each to the next target
	from   int           // the place in plan
	used   int           // of it
	paced  int           // attempts issued
	since  time.Duration // since then, both since the dialer last caught up

	retried int           // attempts that failed and are made up for
	retry   time.Duration // when there will be more
}

// run starts all connections, and returns before they are established. It ends
// early with ctx's cause or with an error of Dial other than ErrFull, which it
// tries again a tick later.
func (d *dialer) run(ctx context.Context) error {
	tick := time.NewTicker(dialEvery)
	defer tick.Stop()
	begin := time.Now()
	for d.churn || d.issued < d.connections {
		if err := d.issue(d.due(time.Since(begin))); err != nil && !errors.Is(err, engine.ErrFull) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return nil
}

// due is how many attempts may be started at a time since the beginning.
func (d *dialer) due(now time.Duration) int {
	free := max(halfOpen, d.rate) - (d.issued - int(d.settled()))
	wanted := d.wanted(now) - d.issued
	if wanted <= 0 {
		d.since, d.paced = now, 0
		return 0
	}
	if d.rate > 0 {
		free = min(free, 1+int((now-d.since).Seconds()*float64(d.rate))-d.paced)
	}
	return max(min(free, wanted), 0)
}

// wanted is how many attempts there should have been.
func (d *dialer) wanted(now time.Duration) int {
	n := d.connections
	if d.ramp.Over > 0 && now < d.ramp.Over {
		share := float64(now) / float64(d.ramp.Over)
		n = d.ramp.From + int(share*float64(d.connections-d.ramp.From))
	}
	if !d.churn {
		return n
	}
	if now >= d.retry {
		d.retried, d.retry = int(d.failed()), now+retryEvery
	}
	return n + int(d.gone()) + d.retried
}

// retryEvery is how long attempts that failed wait for another one.
const retryEvery = 100 * time.Millisecond

func (d *dialer) issue(n int) error {
	part := min(max((n+d.loops-1)/d.loops, leastOrder), n)
	for n > 0 {
		s := &d.plan[d.from]
		t := d.targets[d.orders%len(d.targets)]
		count := min(part, n, s.count-d.used)
		if len(d.targets) > 1 {
			count = min(count, max(part/len(d.targets), 1))
		}
		if err := d.engine.Dial(engine.DialRequest{Target: t.addr, Path: t.path, Source: t.from(s.addr), Count: count}); err != nil {
			return err
		}
		d.orders++
		d.issued += count
		d.paced += count
		n -= count
		if d.used += count; d.used == s.count {
			d.from, d.used = (d.from+1)%len(d.plan), 0
		}
	}
	return nil
}

// perSource is the most connections from one source address that load plans
// by itself, whatever the number of ports.
const perSource = 20_000

// source is a local address and how many connections are made from it; the
// zero address is the kernel's choice.
type source struct {
	addr  netip.Addr
	count int
}

// planSources spreads connections over source addresses, evenly. Of the
// addresses for a loopback target it makes as many as needed if each may have
// most connections; 0 leaves the choice to the kernel.
func planSources(target netip.Addr, connections int, given []netip.Addr, most int) []source {
	addrs := given
	if len(addrs) == 0 {
		addrs = []netip.Addr{{}}
		if most > 0 && connections > most && target.Is4() && target.IsLoopback() {
			addrs = loopbacks(min((connections+most-1)/most, maxLoopbacks))
		}
	}
	plan := make([]source, 0, len(addrs))
	for i, a := range addrs {
		// The first ones take what is left over.
		count := connections / len(addrs)
		if i < connections%len(addrs) {
			count++
		}
		if count > 0 {
			plan = append(plan, source{addr: a, count: count})
		}
	}
	return plan
}

// maxLoopbacks is how many addresses loopbacks can make.
const maxLoopbacks = 254 << 16

// loopbacks are the first n host addresses of 127.0.0.0/8 that end in neither
// 0 nor 255.
func loopbacks(n int) []netip.Addr {
	addrs := make([]netip.Addr, n)
	for i := range addrs {
		high, low := i/254, i%254+1
		addrs[i] = netip.AddrFrom4([4]byte{127, byte(high >> 8), byte(high), byte(low)})
	}
	return addrs
}

// sourceRoom is how many connections load plans for one source address on this
// machine: a quarter of the ephemeral ports. The kernel looks for a free port by
// trying one after the other, first all even or all odd ones: with half of them
// in use it takes many tries, with two thirds connecting is ten times slower.
// It is 0 where all of 127.0.0.0/8 isn't there to be used.
func sourceRoom() int {
	if runtime.GOOS != "linux" {
		return 0
	}
	var low, high int
	ports, err := procfs.ReadSysctl("net.ipv4.ip_local_port_range")
	if err != nil {
		return perSource
	}
	if _, err := fmt.Sscan(ports, &low, &high); err != nil || high <= low {
		return perSource
	}
	return min(perSource, max((high-low+1)/4, 1))
}
