package load

import (
	"context"
	"errors"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// startEvery is how long the starter waits when a mailbox is full.
const startEvery = time.Millisecond

// startTraffic nudges every connection, so that its owner sends the first
// messages. It runs when links are no longer given, and ends early with ctx.
func (t *traffic) startTraffic(ctx context.Context) {
	tick := time.NewTicker(startEvery)
	defer tick.Stop()
	used := min(int(t.slab.next.Load()), len(t.slab.links))
	for i := range t.slab.links[:used] {
		ref := t.slab.links[i].ref
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
