package faults

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// serveOn starts a server at one end of a link.
func serveOn(t *testing.T, sp spec, l *Link) *subject {
	t.Helper()
	sp.Addr = net.JoinHostPort(ServerAddr.String(), "0")
	return serve(t, sp, l.Server)
}

// Over a link that loses, delays and reorders packets every answer comes, in
// order.
func TestBadWeather(t *testing.T) {
	onModelsAtOnce(t, 150, func(t *testing.T, model string) {
		l := link(t, Weather{Loss: 0.03, Delay: 2 * time.Millisecond, Jitter: 6 * time.Millisecond, Seed: 7})
		s := serveOn(t, spec{Model: model}, l)
		s.begin(&Honest{Addr: s.Addr, In: l.Clients, Conns: 30, Pipeline: 50})
		s.eventually(func() bool {
			for _, n := range s.clients.Each() {
				if n < 250 && s.clients.Report().First == nil {
					return false
				}
			}
			return true
		}, func() string { return fmt.Sprintf("honest clients have had %v answers", s.clients.Each()) })
		lost, overtaken, overflown := l.lost.Load(), l.overtaken.Load(), l.overflown.Load()
		if lost < 50 || overtaken < 50 || overflown > 0 {
			t.Errorf("the link has lost %d packets, and %d have overtaken others; there was no room for %d", lost, overtaken, overflown)
		}
		t.Logf("%d packets arrived, %d overtaken, %d lost", l.passed.Load(), overtaken, lost)
		l.weather.Store(&Weather{})
		s.round()
		s.back()
		s.end()
	})
}

// Peers whose link is cut, without a word, are found by the idle timeout where
// they are silent, and by the write timeout where they are owed something; by the
// server's own or, counted as broken off, by the kernel's, which is as long.
// Honest clients come another way.
func TestCutLink(t *testing.T) {
	onModelsAtOnce(t, 150, func(t *testing.T, model string) {
		const n = 50
		l := link(t, Weather{})
		s := serve(t, spec{
			Addr: "0.0.0.0:0", Model: model,
			Limits: tcp.Limits{IdleTimeout: 6 * time.Second, WriteTimeout: time.Second},
		}, l.Server)
		port := s.addr.Port()
		s.begin(&Honest{
			Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port).String(), In: l.Server,
			Conns: 20, Think: 10 * time.Millisecond,
		})
		over := netip.AddrPortFrom(ServerAddr, port)
		held := HalfOpen(over, n, []byte("hold\n"))
		silent := HalfOpen(over, n, []byte("hello\n"))
		for _, w := range []*Swarm{held, silent} {
			w.In, w.Every = l.Clients, 50*time.Millisecond
			s.attack(w)
			s.eventually(func() bool { return w.Counts().Answered == n }, func() string {
				return fmt.Sprintf("all are answered: %+v", w.Counts())
			})
		}
		l.cut.Store(true)
		var p pushed
		s.ask("push", &p)
		if p.Sent != n {
			t.Fatalf("more is sent to %d connections: %+v", n, p)
		}
		s.round()
		// A silent one whose client's last acknowledgement was cut off is owed something, too.
		s.counts("all are closed", func(st tcp.Stats) bool {
			owed := st.Closed.Write + st.Closed.Reset
			return owed >= n && st.Closed.Idle > 0 && owed+st.Closed.Idle == 2*n
		})
		if c := held.Counts(); c.Lost > 0 || c.Open != n {
			t.Errorf("peers behind a cut link hear of nothing: %+v", c)
		}
		s.round()
		var nothing any
		s.ask("forget", &nothing)
		s.back()
		s.end()
	})
}
