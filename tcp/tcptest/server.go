// Package tcptest tests what a server does without a network: connections are in
// memory, and time passes only when the test says so. What is served is a whole
// [tcp.Server], with its limits, heartbeats and framing, over the same state machine of a
// connection as in production; only sockets, event loops and TLS are not there.
//
//	func TestEcho(t *testing.T) {
//		s := tcptest.NewServer(t, &tcp.Server{Handler: tcp.Lines(echo)})
//		p := s.Dial()
//		p.Send("hello\n")
//		p.Expect("hello\n")
//		s.Advance(time.Minute) // idle timeouts and heartbeats
//		p.CloseWrite()
//		p.ExpectClosed(io.EOF)
//	}
//
// # What happens when
//
// A call of a Server or a Peer returns when everything that follows from it has been done:
// handlers have been called, on the goroutine of the test, and what they have written has
// been delivered. Connections are dealt with in the order of Dial. So the same test has the
// same course each time. (A Shutdown or Close of the server itself calls handlers on the
// goroutine that calls it.) What the test does itself to a [tcp.Ref], a [tcp.Group] or
// the server (Broadcast, CloseConns, PauseAccepting) is done in the next call of either.
//
// A handler that leaves its answer to a goroutine of its own can be tested as well:
// [Peer.Expect] and [Peer.ExpectClosed] wait for it, up to 5 s of real time, or 0.8 s while
// more output waits for the peer than is read on for (Limits.HighWater). Within
// a bubble of testing/synctest, that time is the bubble's, so that what never comes is found at
// once, and timers of the handler are at the test's command: synctest.Wait, or time.Sleep,
// before the next call. The server's own clock moves by [Server.Advance] alone.
//
// # What is not as in production
//
// Handlers run one at a time, and never on Server.Workers; so Shed is not called. Limits of time
// are kept to within 34 ms, early rather than late, and not an eighth later; at a
// shutdown all connections drain at once. Server.TLSConfig must be nil and Processes at
// most 1. How long handlers take (Limits.HandlerTime) is not looked at, and Model, Loops, Spin
// and Socket mean nothing.
//
// A panic of a handler closes its connection, with a [*tcp.PanicError], and is logged, as
// in production; and it fails the test, unless that asks for the reason with
// [Peer.Closed] or [Peer.ExpectClosed].
package tcptest

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/virtual"
	"github.com/myriad-go/myriad/tcp"
)

// shutdownTimeout is the default of Limits.ShutdownTimeout.
const shutdownTimeout = 30 * time.Second

// Server is a server in a test. Its methods and those of its Peers are for the goroutine of
// the test: not for another one, nor for handlers, where they panic.
type Server struct {
	t      testing.TB
	srv    *tcp.Server
	engine *virtual.Engine
	peers  []*Peer
	busy   atomic.Bool // a call is under way
}

// NewServer serves srv until the end of the test. srv has not served before and does not
// afterwards; its Addr is not used. If its Log is nil, what it logs is written to the
// test's output. Settings that can't be served with fail the test at once.
func NewServer(t testing.TB, srv *tcp.Server) *Server {
	t.Helper()
	switch {
	case srv.TLSConfig != nil:
		t.Fatal("tcptest: Server.TLSConfig is set; expected nil, because peers speak without TLS")
	case srv.Processes > 1:
		t.Fatalf("tcptest: Server.Processes is %d; expected 0 or 1", srv.Processes)
	}
	if srv.Log == nil {
		srv.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	l, listens, ended := &virtual.Listener{}, make(chan struct{}), make(chan error, 1)
	listening := srv.Listening
	srv.Listening = func(addr net.Addr) {
		if listening != nil {
			listening(addr)
		}
		close(listens)
	}
	go func() { ended <- srv.Serve(context.Background(), l) }() // which waits for the end
	select {
	case <-listens:
	case err := <-ended:
		t.Fatalf("tcptest: %v", err)
	}
	s := &Server{t: t, srv: srv, engine: l.Engine}
	t.Cleanup(func() {
		_ = srv.Close() // it has been asked for
		if err := <-ended; err != nil {
			t.Errorf("tcptest: %v", err)
		}
		s.reportPanics()
	})
	return s
}

// do runs a part of the test, with everything settled before and after.
func (s *Server) do(what func()) {
	if !s.busy.CompareAndSwap(false, true) {
		panic("tcptest: a call within a handler, or by two goroutines at a time; expected calls by the goroutine of the test")
	}
	defer s.busy.Store(false)
	s.engine.DoSettled(what)
}

// Dial connects a peer: from 198.51.100.1, and from a port that no other has had, 1024 for the
// first. The server may turn it away: then the peer is closed, and its output is the
// answer of Server.Refuse. A server takes at most 65,536 peers in all; one more, and one
// after Drain, fail the test.
func (s *Server) Dial() *Peer {
	s.t.Helper()
	const first, ports = 1024, 1<<16 - 1024
	n := len(s.peers)
	ip := netip.AddrFrom4([4]byte{198, 51, 100, byte(1 + n/ports)})
	return s.DialFrom(netip.AddrPortFrom(ip, uint16(first+n%ports)))
}

// DialFrom is Dial from an address, for what goes by addresses, such as Server.Deny. The zero
// value stands for a unix socket.
func (s *Server) DialFrom(addr netip.AddrPort) *Peer {
	s.t.Helper()
	p := &Peer{s: s}
	var err error
	s.do(func() { p.end, err = s.engine.Connect(addr) })
	if err != nil {
		s.t.Fatalf("tcptest: dial: %v", err)
	}
	s.peers = append(s.peers, p)
	return p
}

// Advance has time pass for the server, and what is due meanwhile happen in the order of
// time: heartbeats, and the times of tcp.Limits. Advance(0) does what is due now, and what
// others have asked for. There are 365 days at most in a test.
func (s *Server) Advance(d time.Duration) {
	s.t.Helper()
	var ok bool
	var most time.Duration
	s.do(func() { ok, most = s.engine.Advance(d) })
	if !ok {
		s.t.Fatalf("tcptest: Advance by %v; expected 0 to %v", d, most)
	}
}

// Drain begins an orderly shutdown, as the end of ListenAndServe's context does, and returns
// at once: connections that are idle are closed with ErrServerClosed, others when their
// message is complete and their output sent. What is left when Limits.ShutdownTimeout has
// passed by Advance is closed then.
func (s *Server) Drain() {
	s.t.Helper()
	within := s.srv.Limits.ShutdownTimeout
	if within == 0 {
		within = shutdownTimeout
	}
	s.do(func() {})
	_ = s.srv.Shutdown(virtual.StopWithin(within)) // which does not wait
	s.do(func() {})
}

// reportPanics fails a test that has not looked at panics.
func (s *Server) reportPanics() {
	unseen := s.engine.Counters()[engine.Panics]
	for _, p := range s.peers {
		why, panicked := p.panicked()
		if !panicked {
			continue
		}
		if unseen--; !p.asked {
			s.t.Errorf("tcptest: %v: %v\n%s", p.Addr(), why, why.Stack)
		}
	}
	if unseen > 0 {
		s.t.Errorf("tcptest: %d panics in Closed, Refuse or later than a connection's reason to close; the log has them", unseen)
	}
}
