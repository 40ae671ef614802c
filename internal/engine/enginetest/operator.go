package enginetest

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

// The cases of what an operator may do to an engine that runs.
var operatorCases = []testCase{
	{"nothing is accepted while it is held", holds},
	{"held where the rate of accepting pauses", holdsWithRate},
	{"Stop while it is held", stopHeld},
	{"connection of a peer is closed", expels},
	{"connection of a peer is closed among many", expelsAmongMany},
	{"connection of a peer whose handler has not returned", expelsBusy},
	{"orders after Stop", ordersAfterStop},
}

// wantHolding waits until all that accept have heard whether they are held.
func (s *server) wantHolding(on bool) {
	s.t.Helper()
	var want int64
	if on {
		want = int64(max(s.Loops(), 1))
	}
	testkit.WaitFor(s.t, fmt.Sprintf("not %d are counted as holding", want), func() bool {
		return s.Counters()[engine.AcceptPausedCount] == want
	})
}

func (s *server) holdNow(on bool) {
	s.t.Helper()
	if err := s.PauseAccept(on); err != nil {
		s.t.Errorf("Hold(%v): %v", on, err)
	}
	s.wantHolding(on)
}

// peer is the client as the server sees it.
func (c *client) peer() netip.AddrPort {
	return c.LocalAddr().(*net.TCPAddr).AddrPort()
}

func (s *server) expelNow(c *client) {
	s.t.Helper()
	if err := s.ClosePeerConns(c.peer()); err != nil {
		s.t.Errorf("Expel: %v", err)
	}
}

// holds has an engine accept nothing until it is told, from the start or while it serves others.
func holds(b *bench) {
	for _, fromStart := range []bool{false, true} {
		s := b.serve(lines(), func(cfg *engine.Config) { cfg.StartPaused = fromStart })
		var clients []*client
		meanwhile := func() {
			for _, c := range clients {
				c.exchange("meanwhile\n")
			}
		}
		if fromStart {
			s.wantHolding(true)
		} else {
			clients = s.dials(1)
			meanwhile()
			s.holdNow(true)
		}
		open := int64(len(clients))
		late := s.dials(10)
		for _, l := range late {
			l.Send("is anybody there?\n")
		}
		for range 20 { // turns, in which they would be accepted
			meanwhile()
		}
		if n := s.Counters(); n[engine.Accepted] != open || n[engine.Open] != open || n[engine.AcceptErrors] != 0 {
			b.Errorf("counted %d accepted, %d open, %d errors while held; want %d, %d and 0",
				n[engine.Accepted], n[engine.Open], n[engine.AcceptErrors], open, open)
		}
		s.holdNow(false)
		for _, l := range late {
			l.Expect("is anybody there?\n")
		}
		clients = append(clients, s.dial())
		meanwhile()
	}
}

func holdsWithRate(b *bench) {
	const n, rate = 40, 100
	s := b.serve(lines(), func(cfg *engine.Config) { cfg.Admission = engine.AdmissionRules{Rate: rate} })
	for range 3 {
		clients := s.dials(n)
		s.holdNow(true)
		s.holdNow(false)
		for _, c := range clients {
			c.exchange("hello\n")
		}
	}
}

func stopHeld(b *bench) {
	s := b.serve(lines())
	c := s.dial()
	c.exchange("hello\n")
	s.holdNow(true)
	late := s.dial()
	done := s.stop(background(b))
	c.ExpectEOF("")
	c.Close()
	b.ok(testkit.Receive(b, done, "the return of Stop"))
	late.ExpectClosed()
	if n := s.Counters()[engine.AcceptPausedCount]; n != 0 {
		b.Errorf("%d are counted as holding after the end", n)
	}
}

func expels(b *bench) {
	s := b.serve(lines())
	clients := s.dials(5)
	for _, c := range clients {
		c.exchange("hello\n")
	}
	b.ok(s.ClosePeerConns(netip.MustParseAddrPort("192.0.2.1:80")))
	s.expelNow(clients[2])
	clients[2].ExpectClosed()
	s.wantClosed(engine.ErrClosedByOperator)
	s.wantCause(engine.ClosedByOperator, 1)
	for i, c := range clients {
		if i != 2 {
			c.exchange("still there\n")
		}
	}
}

// expelsAmongMany has more connections than are looked at in one turn.
func expelsAmongMany(b *bench) {
	const n = 700
	s := b.serve(lines())
	var clients []*client
	for i := range 4 {
		clients = append(clients, s.dial())
		if i < 2 {
			Crowd(b, s.Addr().String(), n/2)
		}
	}
	s.wantOpened(n + len(clients))
	for i, c := range clients[:3] {
		s.expelNow(c)
		c.ExpectClosed()
		if whys := s.closed(i + 1); len(whys) != i+1 || whys[i] != engine.ErrClosedByOperator {
			b.Errorf("closed for %v, want %d for %v", whys, i+1, engine.ErrClosedByOperator)
		}
	}
	clients[3].exchange("still there\n")
}

// expelsBusy closes a connection while its handler is called: when that returns.
func expelsBusy(b *bench) {
	s, c, _, release := b.hold(&Script{})
	s.expelNow(c)
	if whys := s.reasons(); len(whys) != 0 {
		b.Errorf("closed for %v while the handler has not returned", whys)
	}
	release()
	s.wantClosed(engine.ErrClosedByOperator)
	c.ExpectClosed()
}

func ordersAfterStop(b *bench) {
	s := b.serve(lines())
	wantStopped(b, s, s.stopNow(b))
	if err := s.PauseAccept(true); err != engine.ErrClosed {
		b.Errorf("Hold after Stop: %v, want %v", err, engine.ErrClosed)
	}
	if err := s.ClosePeerConns(netip.MustParseAddrPort("192.0.2.1:80")); err != engine.ErrClosed {
		b.Errorf("Expel after Stop: %v, want %v", err, engine.ErrClosed)
	}
}
