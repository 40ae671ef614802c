package enginetest

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

var entryCases = []testCase{
	{"more connections than MaxConns", testTooManyConns},
	{"denied addresses, and more connections from a source than are let in, with an answer", testRefusalReply},
	{"several listeners, one with a bound", testSeveralListeners},
}

func testTooManyConns(b *testEnv) {
	const most, more = 4, 3
	s := b.startServer(lines(), limited(func(l *engine.Limits) { l.MaxConns = most }))
	clients := s.dialMany(most)
	for _, c := range clients {
		c.exchange("welcome\n")
	}
	for range more {
		s.dial().ExpectClosed()
	}
	if n := s.Counters(); n.TotalRefused() != more || n[engine.Accepted] != most || n[engine.Open] != most {
		b.Errorf("counted %d refused, %d accepted, %d open; want %d, %d, %d", n.TotalRefused(), n[engine.Accepted], n[engine.Open], more, most, most)
	}
	clients[0].Close()
	s.wantClosed(io.EOF)
	s.wantAccepting()
	for _, c := range clients[1:] {
		c.exchange("still there\n")
	}
}

// wantAccepting waits until a connection is accepted. The slot of a closed connection is released a moment after the
// close.
func (s *server) wantAccepting() {
	s.t.Helper()
	testkit.WaitFor(s.t, "no room comes back after a connection has closed", func() bool {
		c := s.dial()
		_ = c.tryWrite("room?\n")
		return c.tryExpect("room?\n") == nil
	})
}

// testSeveralListeners checks that connections know their listener and are counted there. A dialled connection has no
// listener.
func testSeveralListeners(b *testEnv) {
	own := listen(b)
	s := b.startServer(&Script{Received: func(c *engine.Conn, in []byte) int {
		fmt.Fprintf(c, "%s %d\n", c.ListenerName(), c.Listener())
		return len(in)
	}}, func(cfg *engine.Config) {
		cfg.Listeners = []engine.Listener{
			{Name: "a", Network: "tcp", Addr: "127.0.0.1:0"}, {Name: "b", Network: "tcp", Addr: "127.0.0.1:0", MaxConns: 2, Backlog: 8}, {Name: "c", Socket: own},
		}
	})
	at := s.ListenerStats()
	if len(at) != 3 || s.Addr().String() != at[0].Addr.String() {
		b.Fatalf("Listening: %+v, want three, Addr %v being the first", at, s.Addr())
	}
	dial := func(i int) *client { return dialTo(b, at[i].Addr.String()) }
	var there []*client
	for i, want := range []string{"a 0\n", "b 1\n", "c 2\n", "b 1\n"} {
		there = append(there, dial(i%3+i/3))
		there[i].sendAndExpect("?", want)
	}
	wantListenerStats(b, s, "a 1 1 0, b 2 2 0, c 1 1 0")
	dial(1).ExpectClosed()
	wantListenerStats(b, s, "a 1 1 0, b 2 2 1, c 1 1 0")
	s.wantRefused(engine.RefusedFull, 1)
	there[1].Close()
	s.wantClosed(io.EOF)
	wantListenerStats(b, s, "a 1 1 0, b 1 2 1, c 1 1 0") // the slot of the closed connection is free again
	dial(1).sendAndExpect("?", "b 1\n")
	other := listen(b)
	b.requireNoError(s.Dial(engine.DialRequest{Target: other.Addr().(*net.TCPAddr).AddrPort(), Count: 1}))
	dialled, err := other.Accept()
	b.requireNoError(err)
	s.wantOpened(6)
	wantListenerStats(b, s, "a 1 1 0, b 2 3 1, c 1 1 0")
	defer dialled.Close()
	Kill(s)
	wantListenerStats(b, s, "a 0 1 0, b 0 3 1, c 0 1 0")
}

// wantListenerStats waits until the listeners' open, accepted and refused counts are as wanted.
func wantListenerStats(b *testEnv, s *server, want string) {
	b.Helper()
	text := func() string {
		var all []string
		for _, l := range s.ListenerStats() {
			all = append(all, fmt.Sprintf("%s %d %d %d", l.Name, l.Open, l.Accepted, l.Refused))
		}
		return strings.Join(all, ", ")
	}
	testkit.WaitFor(b, "Listening is not "+want, func() bool { return text() == want })
}

// testBadListener listens on two addresses. The second is in use, so the listener of the first must be closed.
func testBadListener(b *testEnv) {
	taken := listen(b)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	b.requireNoError(err)
	free.Close()
	at := free.Addr().String()
	e, err := b.model.Start(engine.Config{
		Listeners: []engine.Listener{{Network: "tcp", Addr: at}, {Network: "tcp", Addr: taken.Addr().String()}},
		Handler:   newWitness(b, &Script{}), Limits: Limits(), Loops: b.loops, Log: slog.New(slog.DiscardHandler),
	})
	if err == nil {
		b.Error("Start at an address that another listens at: no error")
		e.Stop(background(b))
	}
	if nc, err := net.Dial("tcp", at); err == nil {
		nc.Close()
		b.Errorf("%s is listened on after Start has failed", at)
	}
}

func (s *server) dialFrom(ip string) *client {
	s.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}, Timeout: patience}
	nc, err := d.Dial("tcp", s.Addr().String())
	if err != nil {
		s.t.Skipf("no connection from %s: %v", ip, err)
	}
	return &client{testkit.NewConn(s.t, nc), s.t}
}

func (s *server) wantRefused(cause engine.Cause, n int64) {
	s.t.Helper()
	testkit.WaitFor(s.t, "the refused are not counted", func() bool { return s.Counters().RefusedBy(cause) >= n })
	if c := s.Counters(); c.RefusedBy(cause) != n || c.TotalRefused() != n {
		s.t.Errorf("%d connections are counted as refused for cause %d, %d in all, want %d", c.RefusedBy(cause), cause, c.TotalRefused(), n)
	}
}

func testRefusalReply(b *testEnv) {
	s := b.startServer(lines(), func(cfg *engine.Config) {
		cfg.Admission = engine.AdmissionRules{
			MaxPerSource: 2, SourcePrefix: 64,
			Deny:  []netip.Prefix{netip.MustParsePrefix("127.0.0.3/32")},
			Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32"), netip.MustParsePrefix("127.0.0.3/32")},
		}
		cfg.RefusalReply = func(peer netip.AddrPort, reason error) []byte {
			return fmt.Appendf(nil, "%v: %v\n", peer, reason)
		}
	})
	wantRefusal := func(c *client, reason error) {
		b.Helper()
		c.Send("and I talk first\n")
		c.Expect(fmt.Sprintf("%v: %v\n", c.peer(), reason))
		c.ExpectClosed()
	}
	wantRefusal(s.dialFrom("127.0.0.2"), engine.ErrDenied)
	wantRefusal(s.dialFrom("127.0.0.3"), engine.ErrDenied)
	a := s.dial()
	a.exchange("hello\n")
	s.dial().exchange("hello\n")
	for range 3 {
		wantRefusal(s.dial(), engine.ErrRefusedSource)
	}
	if n := s.Counters(); n.RefusedBy(engine.RefusedDenied) != 2 || n.RefusedBy(engine.RefusedSource) != 3 || n.TotalRefused() != 5 {
		b.Errorf("%d are counted as denied, %d for their source and %d in all; want 2, 3 and 5",
			n.RefusedBy(engine.RefusedDenied), n.RefusedBy(engine.RefusedSource), n.TotalRefused())
	}
	a.Close()
	s.wantClosed(io.EOF)
	s.wantAccepting()
}

func testAcceptRate(b *testEnv) {
	const rate = 4
	s := b.startServer(lines(), func(cfg *engine.Config) { cfg.Admission = engine.AdmissionRules{Rate: rate} })
	clients := s.dialMany(2 * rate)
	for len(clients) < 16*rate && s.Counters()[engine.AcceptPauses] == 0 { // a busy machine may dial slower than rate
		clients = append(clients, s.dial())
	}
	for _, c := range clients {
		c.exchange("is anybody there?\n")
	}
	if c := s.Counters(); c[engine.AcceptPauses] == 0 || c[engine.Accepted] != int64(len(clients)) || c.TotalRefused() != 0 {
		b.Errorf("counted %d pauses, %d accepted, %d refused; want some, %d and 0", c[engine.AcceptPauses], c[engine.Accepted], c.TotalRefused(), len(clients))
	}
}
