package loop

import (
	"net/netip"
	"testing"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// At most maxActiveExpels run; when the loops have finished them, more may start. A loop that has ended
// counts as finished.
func TestExpelIsBounded(t *testing.T) {
	g := &loopEngine{cfg: engine.Config{Loops: 2}, done: make(chan struct{})}
	g.admission = engine.NewAdmission(&g.cfg)
	for i := range 2 {
		g.loops = append(g.loops, newLoop(g, i, sock.Eventfd{}))
	}
	peer := netip.MustParseAddrPort("192.0.2.1:80")
	for round := range 2 {
		for i := range maxActiveExpels {
			if err := g.QueueCloseOfPeerConns(peer); err != nil {
				t.Fatalf("round %d, %d: %v", round, i, err)
			}
		}
		if err := g.QueueCloseOfPeerConns(peer); err != engine.ErrFull {
			t.Errorf("round %d, one too many: %v, want %v", round, err, engine.ErrFull)
		}
		for _, l := range g.loops {
			if n := len(l.remoteCalls); n > maxActiveExpels {
				t.Errorf("round %d: %d calls queued for a loop", round, n)
			}
			l.dequeueRequestsAndRunCalls()
		}
	}
	for _, l := range g.loops {
		l.closed = true
	}
	for range maxActiveExpels + 1 {
		if err := g.QueueCloseOfPeerConns(peer); err != nil {
			t.Fatalf("with loops that have ended: %v", err)
		}
	}
}
