package load

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// halfOpen is the most attempts to connect that are under way at once, unless
// the connect rate is higher: then a second's worth.
const halfOpen = 512

// dialEvery is how often the dialer looks what is due. At 5,000 connections a
// second that is 10 at a time.
const dialEvery = 2 * time.Millisecond

// dialer starts connections at a rate. It works out what is due from the time
// since its start, so that a late tick is made up for and the rate holds over
// the whole.
type dialer struct {
	engine interface{ Dial(engine.Dial) error }
	target netip.AddrPort
	// sources are what is left to connect from.
	sources []source
	rate    int // a second, 0 for no bound
	// loops is how many loops the engine deals orders out to, in turn; what
	// is due is ordered in that many parts, so that each gets its share.
	loops int
	// settled counts attempts that have succeeded or failed.
	settled func() int64
}

// run starts all connections, and returns before they are established. It ends
// early with ctx's cause or with an error of Dial other than ErrFull, which it
// tries again a tick later.
func (d *dialer) run(ctx context.Context) error {
	tick := time.NewTicker(dialEvery)
	defer tick.Stop()
	begin := time.Now()
	for issued := 0; len(d.sources) > 0; {
		n, err := d.issue(d.due(time.Since(begin), issued, int(d.settled())))
		issued += n
		if err != nil && !errors.Is(err, engine.ErrFull) {
			return err
		}
		if len(d.sources) == 0 {
			break
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return nil
}

// due is how many attempts may be started after the given time, when that many
// have been issued and have settled.
func (d *dialer) due(since time.Duration, issued, settled int) int {
	free := max(halfOpen, d.rate) - (issued - settled)
	if d.rate > 0 {
		free = min(free, 1+int(since.Seconds()*float64(d.rate))-issued)
	}
	return max(free, 0)
}

// issue starts up to n connections and says how many it has started.
func (d *dialer) issue(n int) (issued int, err error) {
	part := (n + d.loops - 1) / d.loops
	for issued < n && len(d.sources) > 0 {
		s := &d.sources[0]
		count := min(part, n-issued, s.count)
		err := d.engine.Dial(engine.Dial{Target: d.target, Source: s.addr, Count: count})
		if err != nil {
			return issued, err
		}
		issued += count
		if s.count -= count; s.count == 0 {
			d.sources = d.sources[1:]
		}
	}
	return issued, nil
}
