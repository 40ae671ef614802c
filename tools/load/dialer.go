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

// maxHalfOpen is the maximum number of connection attempts in progress at the same time. If the connect rate per second
// is higher than maxHalfOpen, this rate is the maximum instead.
const maxHalfOpen = 512

// minDialBatch is the smallest size that the dialer chooses for a batch of attempts. A batch can still be smaller, for
// example if fewer attempts are due or if there are several targets. Each batch is one call of Dial.
const minDialBatch = 16

const dialInterval = 2 * time.Millisecond

type dialer struct {
	engine interface {
		Dial(engine.DialRequest) error
	}
	targets []resolvedTarget
	// sources contains each source address and its number of connections. If connections are replaced, the dialer
	// continues with the first source after the last.
	sources []source
	rate    int // connections per second, 0 for no limit
	ramp    Ramp
	// connections is the number of connections to keep open. If replaceClosed is set, the dialer replaces closed
	// connections and repeats failed attempts after dialRetryInterval. Otherwise, it ends when it has started all
	// connections. closedConns and failedAttempts return totals since the start of the run.
	connections                 int
	replaceClosed               bool
	closedConns, failedAttempts func() int64
	// loops is the number of event loops. Due attempts are divided into about this many batches.
	loops            int
	finishedAttempts func() int64 // number of attempts that have succeeded or failed

	issued           int           // attempts started so far
	batches          int           // number of batches so far; batches go to the targets in rotation
	sourceIndex      int           // index of the current source
	sourceUsed       int           // connections started from the current source
	startedSinceIdle int           // attempts started since lastIdle
	lastIdle         time.Duration // when the dialer last had nothing to do

	retried   int // number of failed attempts to repeat; updated at nextRetry
	nextRetry time.Duration
}

// dialAndReplaceClosed opens the connections. If d.replaceClosed is not set, it returns nil when it has started all
// attempts. If d.replaceClosed is set, it then replaces closed connections until ctx ends.
//
// When ctx ends, dialAndReplaceClosed returns the cause. If Dial returns an error other than ErrFull, it returns this
// error immediately.
func (d *dialer) dialAndReplaceClosed(ctx context.Context) error {
	tick := time.NewTicker(dialInterval)
	defer tick.Stop()
	begin := time.Now()
	for d.replaceClosed || d.issued < d.connections {
		if err := d.startAttempts(d.attemptsDueWithinLimits(time.Since(begin))); err != nil && !errors.Is(err, engine.ErrFull) {
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

func (d *dialer) attemptsDueWithinLimits(sinceStart time.Duration) int {
	free := max(maxHalfOpen, d.rate) - (d.issued - int(d.finishedAttempts()))
	wanted := d.totalAttemptsForRampAndReplacements(sinceStart) - d.issued
	if wanted <= 0 {
		d.lastIdle, d.startedSinceIdle = sinceStart, 0
		return 0
	}
	if d.rate > 0 {
		free = min(free, 1+int((sinceStart-d.lastIdle).Seconds()*float64(d.rate))-d.startedSinceIdle)
	}
	return max(min(free, wanted), 0)
}

// totalAttemptsForRampAndReplacements returns how many attempts are required from the start of the run until now. These
// are the attempts for the ramp, one for each closed connection, and one for each failed attempt. The connect rate is
// not considered. The number of failed attempts is updated only every dialRetryInterval.
func (d *dialer) totalAttemptsForRampAndReplacements(sinceStart time.Duration) int {
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
		if err := d.engine.Dial(engine.DialRequest{Target: t.addr, Path: t.path, Source: t.sourceIfSameFamily(s.addr), Count: count}); err != nil {
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

// maxPlannedPerSource limits the number of connections from each automatically chosen source address.
const maxPlannedPerSource = 20_000

// source is a local address and its number of connections. For the zero Addr, the kernel chooses the address.
type source struct {
	addr  netip.Addr
	count int
}

// planSources distributes connections evenly over the addresses addrsElseKernelChooses. If addrsElseKernelChooses is
// empty, the kernel usually chooses the source address. However, if more than maxPerLoopbackSource connections go to an
// IPv4 loopback address, they are distributed over several loopback addresses. If maxPerLoopbackSource is 0, there is
// no limit.
func planSources(target netip.Addr, connections int, addrsElseKernelChooses []netip.Addr, maxPerLoopbackSource int) []source {
	addrs := addrsElseKernelChooses
	if len(addrs) == 0 {
		addrs = []netip.Addr{{}}
		if maxPerLoopbackSource > 0 && connections > maxPerLoopbackSource && target.Is4() && target.IsLoopback() {
			addrs = loopbackAddrs(min((connections+maxPerLoopbackSource-1)/maxPerLoopbackSource, maxLoopbacks))
		}
	}
	plan := make([]source, 0, len(addrs))
	for i, a := range addrs {
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

const maxLoopbacks = 254 << 16

// loopbackAddrs returns the first n host addresses of 127.0.0.0/8 that end in neither 0 nor 255.
func loopbackAddrs(n int) []netip.Addr {
	addrs := make([]netip.Addr, n)
	for i := range addrs {
		high, low := i/254, i%254+1
		addrs[i] = netip.AddrFrom4([4]byte{127, byte(high >> 8), byte(high), byte(low)})
	}
	return addrs
}

// maxConnsPerLoopbackSourceAndTarget returns how many connections may use the same pair of loopback source address and
// target. The result is a quarter of the number of ephemeral ports, but at most maxPlannedPerSource. On systems other
// than Linux, the result is 0, which means no limit.
func maxConnsPerLoopbackSourceAndTarget() (countOrZeroIfUnlimited int) {
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
