package goroutine

import (
	"errors"
	"testing"

	"github.com/myriad-go/myriad/internal/await"
	"github.com/myriad-go/myriad/internal/engine"
)

// holdCaster has broadcasts wait until release is called: the caster cannot look at
// the table.
func holdCaster(t *testing.T, g *group) (release func()) {
	g.mu.Lock()
	held := true
	release = func() {
		if held {
			held = false
			g.mu.Unlock()
		}
	}
	t.Cleanup(release)
	return release
}

// Broadcast returns at once whatever holds up the walk over the connections, and
// says when too many are under way.
func TestBroadcastsUnderWay(t *testing.T) {
	for _, c := range []struct {
		name            string
		size, want, max int
	}{
		{"count", 1, maxCasts, 16 << 20},
		{"empty", 0, maxCasts, 10},
		{"bytes", 1000, 10, 10_000},
		{"one larger than the bound", 1000, 1, 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHandler()
			g := serve(t, h, func(cfg *engine.Config) { cfg.Limits.MaxMailBytes, cfg.Limits.MaxMail = c.max, 2*maxCasts })
			dial(t, g)
			await.Receive(t, h.opened, "Opened")
			release := holdCaster(t, g)
			n := 0
			for ; n <= maxCasts; n++ {
				if err := g.Broadcast(make([]byte, c.size)); errors.Is(err, engine.ErrFull) {
					break
				} else if err != nil {
					t.Fatalf("Broadcast: %v", err)
				}
			}
			if n != c.want {
				t.Errorf("%d broadcasts of %d bytes were taken, want %d", n, c.size, c.want)
			}
			release()
			await.True(t, "there is no room again", func() bool { return g.Broadcast(nil) == nil })
			if got := g.Counters()[engine.Broadcasts]; got != int64(n+1) {
				t.Errorf("%d broadcasts are counted, want %d", got, n+1)
			}
			await.True(t, "broadcasts stay under way", func() bool {
				g.casts.mu.Lock()
				defer g.casts.mu.Unlock()
				return len(g.casts.queue) == 0 && g.casts.bytes == 0
			})
		})
	}
}
