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

// maxHalfOpen is the most attempts to connect that are under way at once, unless
// the connect rate is higher: then a second's worth.
const maxHalfOpen = 512

// minDialBatch is the least part of what is due that one loop gets: many loops share
// few processors, and it takes more to wake one than to connect.
const minDialBatch = 16

// dialInterval is how often the dialer looks what is due. At 5,000 connections a
// second that is 10 at a time.
const dialInterval = 2 * time.Millisecond

// dialer starts connections at a rate. It works out what is due from the time
// since it last had nothing to do, so that a late tick is made up for and the rate
// holds over the whole.
type dialer struct {
	engine  interface{ Dial(engine.Dial) error }
	targets []target
	// sources says how many connections come from each source; it is gone
	// through again and again where connections replace others.
	sources []source
	rate    int // a second, 0 for no bound
	ramp    Ramp
	// connections is how many there are to be. With churn, those that are gone
	// make room for others, and so do, after a pause, attempts that failed;
	// without it the dialer ends when all have been started.
	connections                 int
	replaceClosed               bool
	closedConns, failedAttempts func() int64
	// loops is how many loops the engine deals orders out to, in turn; what
	// is due is ordered in that many parts, so that each gets its share.
	loops int
	// finishedAttempts counts attempts that have succeeded or failed.
	finishedAttempts func() int64

	issued           int
	batches          int           // so far, each to the next target
	sourceIndex      int           // the place in plan
	sourceUsed       int           // of it
	startedSinceIdle int           // attempts issued
	lastIdle         time.Duration // since then, both since the dialer last caught up

	retried   int           // attempts that failed and are made up for
	nextRetry time.Duration // when there will be more
}

// dialAll starts all connections, and returns before they are established. It ends
// early with ctx's cause or with an error of Dial other than ErrFull, which it
// tries again a tick later.
func (d *dialer) dialAll(ctx context.Context) error {
	tick := time.NewTicker(dialInterval)
	defer tick.Stop()
	begin := time.Now()
	for d.replaceClosed || d.issued < d.connections {
		if err := d.startAttempts(d.attemptsDue(time.Since(begin))); err != nil && !errors.Is(err, engine.ErrFull) {
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

// attemptsDue is how many attempts may be started at a time since the beginning.
func (d *dialer) attemptsDue(sinceStart time.Duration) int {
	free := max(maxHalfOpen, d.rate) - (d.issued - int(d.finishedAttempts()))
	wanted := d.attemptsWanted(sinceStart) - d.issued
	if wanted <= 0 {
		d.lastIdle, d.startedSinceIdle = sinceStart, 0
		return 0
	}
	if d.rate > 0 {
		free = min(free, 1+int((sinceStart-d.lastIdle).Seconds()*float64(d.rate))-d.startedSinceIdle)
	}
	return max(min(free, wanted), 0)
}

// attemptsWanted is how many attempts there should have been.
func (d *dialer) attemptsWanted(sinceStart time.Duration) int {
	n := d.connections
	if d.ramp.Over > 0 && sinceStart < d.ramp.Over {
		share := float64(sinceStart) / float64(d.ramp.Over)
		n = d.ramp.From + int(share*float64(d.connections-d.ramp.From))
	}
	if !d.replaceClosed {
		return n
	}
	if sinceStart >= d.nextRetry {
		d.retried, d.nextRetry = int(d.failedAttempts()), sinceStart+dialRetryInterval
	}
	return n + int(d.closedConns()) + d.retried
}

// dialRetryInterval is how long attempts that failed wait for another one.
const dialRetryInterval = 100 * time.Millisecond

func (d *dialer) startAttempts(n int) error {
	part := min(max((n+d.loops-1)/d.loops, minDialBatch), n)
	for n > 0 {
		s := &d.sources[d.sourceIndex]
		t := d.targets[d.batches%len(d.targets)]
		count := min(part, n, s.count-d.sourceUsed)
		if len(d.targets) > 1 {
			count = min(count, max(part/len(d.targets), 1))
		}
		if err := d.engine.Dial(engine.Dial{Target: t.addr, Path: t.path, Source: t.matchingSource(s.addr), Count: count}); err != nil {
			return err
		}
		d.batches++
		d.issued += count
		d.startedSinceIdle += count
		n -= count
		if d.sourceUsed += count; d.sourceUsed == s.count {
			d.sourceIndex, d.sourceUsed = (d.sourceIndex+1)%len(d.sources), 0
		}
	}
	return nil
}

// maxPlannedPerSource is the most connections from one source address that load plans
// by itself, whatever the number of ports.
const maxPlannedPerSource = 20_000

// source is a local address and how many connections are made from it; the
// zero address is the kernel's choice.
type source struct {
	addr  netip.Addr
	count int
}

// planSources spreads connections over source addresses, evenly. Of the
// addresses for a loopback target it makes as many as needed if each may have
// most connections; 0 leaves the choice to the kernel.
func planSources(target netip.Addr, connections int, given []netip.Addr, maxPerSource int) []source {
	addrs := given
	if len(addrs) == 0 {
		addrs = []netip.Addr{{}}
		if maxPerSource > 0 && connections > maxPerSource && target.Is4() && target.IsLoopback() {
			addrs = loopbackAddrs(min((connections+maxPerSource-1)/maxPerSource, maxLoopbacks))
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

// loopbackAddrs are the first n host addresses of 127.0.0.0/8 that end in neither
// 0 nor 255.
func loopbackAddrs(n int) []netip.Addr {
	addrs := make([]netip.Addr, n)
	for i := range addrs {
		high, low := i/254, i%254+1
		addrs[i] = netip.AddrFrom4([4]byte{127, byte(high >> 8), byte(high), byte(low)})
	}
	return addrs
}

// connsPerSource is how many connections load plans for one source address on this
// machine: a quarter of the ephemeral ports. The kernel looks for a free port by
// trying one after the other, first all even or all odd ones: with half of them
// in use it takes many tries, with two thirds connecting is ten times slower.
// It is 0 where all of 127.0.0.0/8 isn't there to be used.
func connsPerSource() int {
	if runtime.GOOS != "linux" {
		return 0
	}
	var low, high int
	ports, err := procfs.ReadSysctl("net.ipv4.ip_local_port_range")
	if err != nil {
		return maxPlannedPerSource
	}
	if _, err := fmt.Sscan(ports, &low, &high); err != nil || high <= low {
		return maxPlannedPerSource
	}
	return min(maxPlannedPerSource, max((high-low+1)/4, 1))
}
