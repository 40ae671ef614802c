package enginetest

import (
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"

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
		return s.Counters()[engine.Holding] == want
	})
}

func (s *server) holdNow(on bool) {
	s.t.Helper()
	if err := s.Hold(on); err != nil {
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
	if err := s.Expel(c.peer()); err != nil {
		s.t.Errorf("Expel: %v", err)
	}
}

func holds(b *bench) {
	s := b.serve(lines())
	c := s.dial()
	c.exchange("before\n")
	s.holdNow(true)
	var late []*client
	for range 10 {
		l := s.dial()
		l.send("is anybody there?\n")
		late = append(late, l)
	}
	for range 20 { // turns, in which they would be accepted
		c.exchange("meanwhile\n")
	}
	if n := s.Counters(); n[engine.Accepted] != 1 || n[engine.Open] != 1 || n[engine.AcceptErrors] != 0 {
		b.Errorf("counted %d accepted, %d open, %d errors while held; want 1, 1 and 0", n[engine.Accepted], n[engine.Open], n[engine.AcceptErrors])
	}
	s.holdNow(false)
	for _, l := range late {
		l.expect("is anybody there?\n")
	}
	s.dial().exchange("after\n")
	c.exchange("after\n")
}

func holdsWithRate(b *bench) {
	const n, rate = 40, 100
	s := b.serve(lines(), func(cfg *engine.Config) { cfg.Admission = engine.AdmissionRules{Rate: rate} })
	for range 3 {
		var clients []*client
		for range n {
			clients = append(clients, s.dial())
		}
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
	c.expectEnd("")
	c.Close()
	b.ok(testkit.Receive(b, done, "the return of Stop"))
	late.expectGone()
	if n := s.Counters()[engine.Holding]; n != 0 {
		b.Errorf("%d are counted as holding after the end", n)
	}
}

func expels(b *bench) {
	s := b.serve(lines())
	var clients []*client
	for range 5 {
		c := s.dial()
		c.exchange("hello\n")
		clients = append(clients, c)
	}
	b.ok(s.Expel(netip.MustParseAddrPort("192.0.2.1:80")))
	s.expelNow(clients[2])
	clients[2].expectGone()
	s.wantClosed(engine.ErrExpelled)
	s.wantCause(engine.ClosedExpelled, 1)
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
		c.expectGone()
		if whys := s.closed(i + 1); len(whys) != i+1 || whys[i] != engine.ErrExpelled {
			b.Errorf("closed for %v, want %d for %v", whys, i+1, engine.ErrExpelled)
		}
	}
	clients[3].exchange("still there\n")
}

// expelsBusy closes a connection while its handler is called: when that returns.
func expelsBusy(b *bench) {
	called, goOn := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	s := b.serve(&Script{Received: func(c *engine.Conn, in []byte) int {
		if !once.Swap(true) {
			close(called)
			<-goOn
		}
		return answerLine(c, in)
	}})
	c := s.dial()
	c.send("one\n")
	testkit.Receive(b, called, "the handler")
	s.expelNow(c)
	if whys := s.reasons(); len(whys) != 0 {
		b.Errorf("closed for %v while the handler has not returned", whys)
	}
	close(goOn)
	s.wantClosed(engine.ErrExpelled)
	c.expectGone()
}

func ordersAfterStop(b *bench) {
	s := b.serve(lines())
	wantStopped(b, s, s.stopNow(b))
	if err := s.Hold(true); err != engine.ErrClosed {
		b.Errorf("Hold after Stop: %v, want %v", err, engine.ErrClosed)
	}
	if err := s.Expel(netip.MustParseAddrPort("192.0.2.1:80")); err != engine.ErrClosed {
		b.Errorf("Expel after Stop: %v, want %v", err, engine.ErrClosed)
	}
}
