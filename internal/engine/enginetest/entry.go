package enginetest

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"

	"github.com/myriad-go/myriad/internal/engine"
)

var entryCases = []testCase{
	{"more connections from a source than are let in", perSource},
	{"denied addresses, with an answer", denied},
	{"panic in Refuse", refusePanics},
}

// dialFrom connects from another address of the loopback.
func (s *server) dialFrom(ip string) *client {
	s.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}, Timeout: patience}
	nc, err := d.Dial("tcp", s.Addr().String())
	if err != nil {
		s.t.Skipf("no connection from %s: %v", ip, err)
	}
	s.t.Cleanup(func() { nc.Close() })
	return &client{TCPConn: nc.(*net.TCPConn), t: s.t}
}

func (s *server) wantRefused(cause engine.Cause, n int64) {
	s.t.Helper()
	eventually(s.t, "the refused are not counted", func() bool { return s.Counters().Refused(cause) >= n })
	if c := s.Counters(); c.Refused(cause) != n || c.AllRefused() != n {
		s.t.Errorf("%d connections are counted as refused for cause %d, %d in all, want %d", c.Refused(cause), cause, c.AllRefused(), n)
	}
}

// refusing answers who is turned away.
func refusing(answer string, want error, b *bench) with {
	return func(cfg *engine.Config) {
		cfg.Refuse = func(peer netip.AddrPort, why error) []byte {
			if !errors.Is(why, want) || !peer.IsValid() {
				b.Errorf("Refuse of %v for %v, want %v", peer, why, want)
			}
			return []byte(answer)
		}
	}
}

func perSource(b *bench) {
	s := b.serve(lines(), refusing("too many\n", engine.ErrRefusedSource, b),
		func(cfg *engine.Config) { cfg.Door = engine.DoorRules{MaxPerSource: 2, SourcePrefix: 64} })
	a, other := s.dial(), s.dialFrom("127.0.0.2")
	a.exchange("hello\n")
	s.dial().exchange("hello\n")
	for range 3 {
		c := s.dial()
		c.send("and I talk first\n")
		c.expect("too many\n")
		c.expectGone()
	}
	other.exchange("hello\n")
	s.wantRefused(engine.RefusedSource, 3)
	a.Close()
	s.wantClosed(io.EOF)
	eventually(b, "no room comes back for the source", func() bool {
		c := s.dial()
		c.tryWrite("room?\n")
		return c.tryExpect("room?\n") == nil
	})
}

func acceptRate(b *bench) {
	const n, rate = 60, 100 // a busy machine, too, takes them faster
	s := b.serve(lines(), func(cfg *engine.Config) { cfg.Door = engine.DoorRules{Rate: rate} })
	for round := range 5 {
		var clients []*client
		for range n {
			clients = append(clients, s.dial())
		}
		for _, c := range clients {
			c.exchange("is anybody there?\n")
			c.Close()
		}
		s.closed((round + 1) * n)
	}
	if c := s.Counters(); c[engine.AcceptPauses] == 0 || c[engine.Accepted] != 5*n || c.AllRefused() != 0 {
		b.Errorf("counted %d pauses, %d accepted, %d refused; want some, %d and 0", c[engine.AcceptPauses], c[engine.Accepted], c.AllRefused(), 5*n)
	}
}

func denied(b *bench) {
	s := b.serve(lines(), refusing("not you\n", engine.ErrDenied, b), func(cfg *engine.Config) {
		cfg.Door = engine.DoorRules{
			Deny:  []netip.Prefix{netip.MustParsePrefix("127.0.0.3/32")},
			Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32"), netip.MustParsePrefix("127.0.0.3/32")},
		}
	})
	for _, ip := range []string{"127.0.0.2", "127.0.0.3"} {
		c := s.dialFrom(ip)
		c.expect("not you\n")
		c.expectGone()
	}
	s.dial().exchange("hello\n")
	s.wantRefused(engine.RefusedDenied, 2)
}

func refusePanics(b *bench) {
	var calls atomic.Int64
	s := b.serve(lines(), limited(func(l *engine.Limits) { l.MaxConns = 1 }), func(cfg *engine.Config) {
		cfg.Refuse = func(netip.AddrPort, error) []byte {
			calls.Add(1)
			panic(errPanic)
		}
	})
	c := s.dial()
	c.exchange("hello\n")
	for range 3 {
		s.dial().expectGone()
	}
	s.wantRefused(engine.RefusedFull, 3)
	if n := s.Counters()[engine.Panics]; n != 3 || calls.Load() != 3 {
		b.Errorf("%d panics are counted of %d", n, calls.Load())
	}
	c.exchange("still there\n")
}
