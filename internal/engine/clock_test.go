package engine

import (
	"sync"
	"testing"
	"time"
)

// A shared clock must never go back or be behind, and is rarely written.
func TestSharedClock(t *testing.T) {
	const grain = time.Millisecond
	h := &Runtime{ClockSlack: grain}
	for _, c := range []struct{ now, want time.Duration }{
		{5, 5 + grain}, {6, 5 + grain}, {3, 5 + grain}, {5 + grain, 5 + grain}, {6 + grain, 6 + 2*grain},
	} {
		if h.SetClock(c.now); h.Clock() != c.want {
			t.Errorf("after %d the clock is at %d, want %d", c.now, h.Clock(), c.want)
		}
	}
	h = &Runtime{ClockSlack: grain}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			var last time.Duration
			for range 20_000 {
				now := MonotonicNow()
				h.SetClock(now)
				got := h.Clock()
				if late := MonotonicNow(); got < now || got < last || got > late+grain {
					t.Errorf("the clock is at %v between %v and %v, and was at %v", got, now, late, last)
					return
				}
				last = got
			}
		})
	}
	all.Wait()
}
