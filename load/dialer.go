package load

import (
	"context"
	"errors"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
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
	engine  interface{ Dial(engine.Dial) error }
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
	// enough, once it is closed, ends the dialer: cut is told how many it has
	// started.
	enough <-chan struct{}
	cut    func(issued int)
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
		case <-d.enough:
			d.cut(d.issued)
			return nil
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

// issue starts n connections.
func (d *dialer) issue(n int) error {
	part := min(max((n+d.loops-1)/d.loops, leastOrder), n)
	for n > 0 {
		s := &d.plan[d.from]
		t := d.targets[d.orders%len(d.targets)]
		count := min(part, n, s.count-d.used)
		if len(d.targets) > 1 {
			count = min(count, max(part/len(d.targets), 1))
		}
		if err := d.engine.Dial(engine.Dial{Target: t.addr, Path: t.path, Source: t.from(s.addr), Count: count}); err != nil {
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
