package loop

import (
	"net/netip"
	"testing"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// No more than maxExpels are under way; when the loops have done them there is room
// again, and a loop that has ended has done its part.
func TestExpelIsBounded(t *testing.T) {
	g := &group{cfg: engine.Config{Loops: 2}, done: make(chan struct{})}
	g.admission = engine.NewAdmission(&g.cfg)
	for i := range 2 {
		g.loops = append(g.loops, newLoop(g, i, sock.Eventfd{}))
	}
	peer := netip.MustParseAddrPort("192.0.2.1:80")
	for round := range 2 {
		for i := range maxExpels {
			if err := g.ClosePeerConns(peer); err != nil {
				t.Fatalf("round %d, %d: %v", round, i, err)
			}
		}
		if err := g.ClosePeerConns(peer); err != engine.ErrFull {
			t.Errorf("round %d, one too many: %v, want %v", round, err, engine.ErrFull)
		}
		for _, l := range g.loops {
			if n := len(l.chores); n > maxExpels {
				t.Errorf("round %d: %d chores are left for a loop", round, n)
			}
			l.takeOrders()
		}
	}
	for _, l := range g.loops {
		l.ended = true
	}
	for range maxExpels + 1 {
		if err := g.ClosePeerConns(peer); err != nil {
			t.Fatalf("with loops that have ended: %v", err)
		}
	}
}
