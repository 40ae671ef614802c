// Package tcptest tests servers without a network. Connections are in memory, and time passes only when the test
// advances it. The package runs a complete [tcp.Server], with its limits, heartbeats and framing, on the connection
// state machine used in production. Only sockets and event loops are missing.
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
// # Order of events
//
// A call of a Server or a Peer returns after all its consequences: handlers have been called, on the test's goroutine,
// and their output has been delivered. Connections are processed in the order of Dial, so a test runs the same way
// every time. (Shutdown and Close of the tcp.Server call handlers on the calling goroutine.) Direct operations on a
// [tcp.Ref], a [tcp.Group] or the tcp.Server, such as Broadcast, take effect in the next call of a Server or a Peer.
//
// A handler may also answer from another goroutine. [Peer.Expect] and [Peer.ExpectClosed] wait up to 5 s of real time
// for the answer, or 0.8 s while reading is paused because of unsent output (Limits.HighWater). Within a bubble of
// testing/synctest, they wait in the bubble's time, so a missing answer is detected immediately. The test then controls
// the handler's timers and Server.OnTick: call time.Sleep and synctest.Wait. Only [Server.Advance] moves the server's
// own clock.
//
// # Differences from production
//
// Handlers run one at a time and never on Server.Workers, so Shed is not called. Time limits take effect up to 34 ms
// early; in production they may be up to an eighth late. In a shutdown, all connections drain immediately. Processes
// must be at most 1. Limits.HandlerTime is not checked, and Model, Loops, Spin and Socket have no effect. With
// Server.TLSConfig, call [Peer.StartTLS] after Dial.
//
// As in production, a panic of a handler closes its connection with a [*tcp.PanicError] and is logged. The panic also
// fails the test, unless the test reads the close reason with [Peer.Closed] or [Peer.ExpectClosed].
package tcptest

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/virtual"
	"github.com/myriad-go/myriad/tcp"
)

const shutdownTimeout = 30 * time.Second

// Server is a test server with simulated connections and time. Use a Server and its Peers only on the test's goroutine,
// outside handlers.
type Server struct {
	t      testing.TB
	srv    *tcp.Server
	engine *virtual.Engine
	peers  []*Peer
	dialed int         // number of dialed peers; MigrateTo raises it so that addresses stay unique
	inCall atomic.Bool // a call is in progress
}

// NewServer serves srv until the end of the test. srv can be used only once. NewServer ignores srv.Addr. If srv.Log is
// nil, the server logs to the test's output. Invalid settings of srv fail the test immediately.
func NewServer(t testing.TB, srv *tcp.Server) *Server {
	t.Helper()
	if srv.Processes > 1 {
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
	go func() { ended <- srv.Serve(context.Background(), l) }() // returns at the end
	select {
	case <-listens:
	case err := <-ended:
		t.Fatalf("tcptest: %v", err)
	}
	s := &Server{t: t, srv: srv, engine: l.Engine}
	t.Cleanup(func() {
		_ = srv.Close() // ends with a cancelled context
		if err := <-ended; err != nil {
			t.Errorf("tcptest: %v", err)
		}
		s.failTestForUnseenPanics()
	})
	return s
}

// runAndSettle runs all pending events, then calls f, and finally runs all events that f has caused.
func (s *Server) runAndSettle(f func()) {
	if !s.inCall.CompareAndSwap(false, true) {
		panic("tcptest: concurrent call or call within a handler; expected calls on the test's goroutine only")
	}
	defer s.inCall.Store(false)
	s.engine.DoAndRunUntilIdle(f)
}

// Dial connects a peer to the server. Each peer has a different address and port, beginning with 198.51.100.1:1024. If
// the server rejects the peer, the peer is closed and its output is the answer of Server.Refuse. Dial fails the test if
// StartDrain was called, or if the server has already had 65,536 peers.
func (s *Server) Dial() *Peer {
	s.t.Helper()
	const first, ports = 1024, 1<<16 - 1024
	n := s.dialed
	ip := netip.AddrFrom4([4]byte{198, 51, 100, byte(1 + n/ports)})
	return s.DialFrom(netip.AddrPortFrom(ip, uint16(first+n%ports)))
}

// DialFrom is like Dial, but connects from addr, for example to test Server.Deny. A zero addr means a unix socket.
func (s *Server) DialFrom(addr netip.AddrPort) *Peer {
	s.t.Helper()
	p := &Peer{s: s}
	var err error
	s.dialed++
	s.runAndSettle(func() { p.end, err = s.engine.Connect(addr) })
	if err != nil {
		s.t.Fatalf("tcptest: dial: %v", err)
	}
	s.peers = append(s.peers, p)
	return p
}

// AcceptDial accepts the oldest connection that the server is dialing (Server.Dial, Conn.Dial). The peer's Addr is the
// dialed address. If the server is not dialing any address, AcceptDial fails the test. Dials of host names are not
// supported.
func (s *Server) AcceptDial() *Peer {
	s.t.Helper()
	p := &Peer{s: s}
	if s.runAndSettle(func() { p.end = s.engine.AcceptDial() }); p.end == nil {
		s.t.Fatalf("tcptest: AcceptDial: no dial is pending; expected the server to call Dial first")
	}
	s.peers = append(s.peers, p)
	return p
}

// RefuseDial is like AcceptDial, but makes the dial fail with err, such as syscall.ECONNREFUSED or tcp.ErrDialTimeout.
// A dial that is neither accepted nor refused waits without limit; Dial.Timeout has no effect.
func (s *Server) RefuseDial(err error) {
	s.t.Helper()
	ok := false
	if s.runAndSettle(func() { ok = s.engine.RefuseDial(err) }); !ok {
		s.t.Fatalf("tcptest: RefuseDial: no dial is pending; expected the server to call Dial first")
	}
}

// MigrateTo moves the open connections to another server, as tcp.Server.Upgrade moves them to a new process. The peers
// of moved connections belong to the other server from then on. stayed contains the peers whose open connections have
// not moved, each with the reason, such as an error of the handler's Save. If SaveState or RestoreState of a
// tcp.StateMigrator fails, MigrateTo fails the test.
func (s *Server) MigrateTo(to *Server) (stayed map[*Peer]error) {
	s.t.Helper()
	stayed = make(map[*Peer]error)
	var err error
	s.runAndSettle(func() {
		to.runAndSettle(func() {
			if err = s.engine.CopyHandlerStateTo(to.engine); err != nil {
				return
			}
			s.peers = slices.DeleteFunc(s.peers, func(p *Peer) bool {
				if _, closed := p.end.Closed(); closed {
					return false
				}
				end, err := p.end.MoveTo(to.engine)
				if err != nil {
					stayed[p] = err
					return false
				}
				p.s, p.end, to.dialed = to, end, max(to.dialed, s.dialed)
				to.peers = append(to.peers, p)
				return true
			})
		})
	})
	if err != nil {
		s.t.Fatalf("tcptest: MigrateTo: SaveState or RestoreState: %v", err)
	}
	return stayed
}

// Advance moves the server's clock forward by d. It runs the heartbeats and timeouts up to the new time, in order. All
// calls together may advance the clock by at most 365 days.
func (s *Server) Advance(d time.Duration) {
	s.t.Helper()
	var ok bool
	var most time.Duration
	s.runAndSettle(func() { ok, most = s.engine.AdvanceClockAndRunDue(d) })
	if !ok {
		s.t.Fatalf("tcptest: Advance by %v; expected 0 to %v", d, most)
	}
}

// StartDrain begins the orderly shutdown that also begins when ListenAndServe's context ends. It does not wait. When
// Advance has moved the clock by Limits.ShutdownTimeout, the remaining connections close.
func (s *Server) StartDrain() {
	s.t.Helper()
	within := s.srv.Limits.ShutdownTimeout
	if within == 0 {
		within = shutdownTimeout
	}
	s.runAndSettle(func() {})
	_ = s.srv.Shutdown(virtual.ContextForStopWithin(within)) // does not block
	s.runAndSettle(func() {})
}

// failTestForUnseenPanics fails the test if a handler has panicked and the test has not read the close reason of the
// connection.
func (s *Server) failTestForUnseenPanics() {
	unseen := s.engine.Counters()[engine.Panics]
	for _, p := range s.peers {
		reason, panicked := p.handlerPanic()
		if !panicked {
			continue
		}
		if unseen--; !p.reasonSeen {
			s.t.Errorf("tcptest: %v: %v\n%s", p.Addr(), reason, reason.Stack)
		}
	}
	if unseen > 0 {
		s.t.Errorf("tcptest: %d panics in Closed or Refuse, or after a connection began to close; see the log", unseen)
	}
}
