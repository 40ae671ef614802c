package load

import (
	"context"
	"errors"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// startEvery is how long the starter waits when a mailbox is full.
const startEvery = time.Millisecond

// startTraffic nudges every connection once, so that its owner sends the first
// messages. It runs when links are no longer given, and ends early with ctx; the next
// call, of a search's next step, goes on from there.
func (t *traffic) startTraffic(ctx context.Context) {
	if t.mode == holding {
		return
	}
	tick := time.NewTicker(startEvery)
	defer tick.Stop()
	for ; t.nudged < t.slab.used(); t.nudged++ {
		ref := t.slab.links[t.nudged].ref
		for errors.Is(ref.Nudge(), engine.ErrFull) {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
		if ctx.Err() != nil {
			return
		}
	}
}
