package enginetest

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

// operatorCases test the control calls of a running engine.
var operatorCases = []testCase{
	{"nothing is accepted while it is held", testPauseAccept},
	{"held where the rate of accepting pauses", testPauseAcceptWithRate},
	{"connection of a peer is closed among many", testClosePeerConnsAmongMany},
	{"connection of a peer whose handler has not returned", testClosePeerConnsBusyHandler},
}

// pauseAcceptAndWait waits until all acceptors have paused or resumed.
func (s *server) pauseAcceptAndWait(on bool) {
	s.t.Helper()
	if err := s.PauseAccept(on); err != nil {
		s.t.Errorf("Hold(%v): %v", on, err)
	}
	s.wantAcceptPaused(on)
}

func (s *server) wantAcceptPaused(on bool) {
	s.t.Helper()
	var want int64
	if on {
		want = int64(max(s.Loops(), 1))
	}
	testkit.WaitFor(s.t, fmt.Sprintf("not %d are counted as holding", want), func() bool {
		return s.Counters()[engine.AcceptPausedCount] == want
	})
}

func (c *client) peer() netip.AddrPort {
	return c.LocalAddr().(*net.TCPAddr).AddrPort()
}

func (s *server) closePeerConnsOf(c *client) {
	s.t.Helper()
	if err := s.QueueCloseOfPeerConns(c.peer()); err != nil {
		s.t.Errorf("Expel: %v", err)
	}
}

// testPauseAccept pauses accepting, from the start or while the engine serves others.
func testPauseAccept(b *testEnv) {
	for _, fromStart := range []bool{false, true} {
		s := b.startServer(lines(), func(cfg *engine.Config) { cfg.StartPaused = fromStart })
		var clients []*client
		meanwhile := func() {
			for _, c := range clients {
				c.exchange("meanwhile\n")
			}
		}
		if fromStart {
			s.wantAcceptPaused(true)
		} else {
			clients = s.dialMany(1)
			meanwhile()
			s.pauseAcceptAndWait(true)
		}
		open := int64(len(clients))
		late := s.dialMany(10)
		for _, l := range late {
			l.Send("is anybody there?\n")
		}
		for range 20 { // lets the loops run turns, in which they would accept the connections
			meanwhile()
		}
		if n := s.Counters(); n[engine.Accepted] != open || n[engine.Open] != open || n[engine.AcceptErrors] != 0 {
			b.Errorf("counted %d accepted, %d open, %d errors while held; want %d, %d and 0",
				n[engine.Accepted], n[engine.Open], n[engine.AcceptErrors], open, open)
		}
		s.pauseAcceptAndWait(false)
		for _, l := range late {
			l.Expect("is anybody there?\n")
		}
		clients = append(late, s.dial())
		meanwhile()

		s.pauseAcceptAndWait(true)
		unaccepted := s.dial()
		Kill(s)
		unaccepted.ExpectClosed()
		s.wantAcceptPaused(false)
	}
}

func testPauseAcceptWithRate(b *testEnv) {
	const n, rate = 40, 100
	s := b.startServer(lines(), func(cfg *engine.Config) { cfg.Admission = engine.AdmissionRules{Rate: rate} })
	for range 3 {
		clients := s.dialMany(n)
		s.pauseAcceptAndWait(true)
		s.pauseAcceptAndWait(false)
		for _, c := range clients {
			c.exchange("hello\n")
		}
	}
}

// testClosePeerConnsAmongMany has more connections than are checked in one turn.
func testClosePeerConnsAmongMany(b *testEnv) {
	const n = 700
	s := b.startServer(lines())
	var clients []*client
	for i := range 4 {
		clients = append(clients, s.dial())
		if i < 2 {
			DialCrowd(b, s.Addr().String(), n/2)
		}
	}
	s.wantOpened(n + len(clients))
	b.checkNoError(s.QueueCloseOfPeerConns(netip.MustParseAddrPort("192.0.2.1:80"))) // closes no connection
	for i, c := range clients[:3] {
		s.closePeerConnsOf(c)
		c.ExpectClosed()
		if whys := s.awaitClosed(i + 1); len(whys) != i+1 || whys[i] != engine.ErrClosedByOperator {
			b.Errorf("closed for %v, want %d for %v", whys, i+1, engine.ErrClosedByOperator)
		}
	}
	s.wantClosedByCause(engine.ClosedByOperator, 3)
	clients[3].exchange("still there\n")
}

// testClosePeerConnsBusyHandler closes a connection whose handler is running: it must be closed when the handler
// returns.
func testClosePeerConnsBusyHandler(b *testEnv) {
	s, c, _, release := b.blockHandler(&Script{})
	s.closePeerConnsOf(c)
	if whys := s.reasons(); len(whys) != 0 {
		b.Errorf("closed for %v while the handler has not returned", whys)
	}
	release()
	s.wantClosed(engine.ErrClosedByOperator)
	c.ExpectClosed()
}
