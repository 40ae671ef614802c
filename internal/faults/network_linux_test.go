package faults

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad"
)

// link makes two networks and the link between them, or skips the test where
// that is not allowed.
func link(t *testing.T, w Weather) *Link {
	t.Helper()
	l, err := NewLink(w)
	if errors.Is(err, os.ErrPermission) || errors.Is(err, os.ErrNotExist) {
		t.Skipf("this test needs root, network namespaces and /dev/net/tun: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// serveOn starts a server at one end of a link.
func serveOn(t *testing.T, sp spec, l *Link) *subject {
	t.Helper()
	sp.Addr = net.JoinHostPort(ServerAddr.String(), "0")
	return serve(t, sp, l.Server)
}

// Over a link that loses, delays and reorders packets every answer comes, in
// order.
func TestBadWeather(t *testing.T) {
	onModels(t, func(t *testing.T, model string) {
		l := link(t, Weather{Loss: 0.03, Delay: 2 * time.Millisecond, Jitter: 6 * time.Millisecond, Seed: 7})
		s := serveOn(t, spec{Model: model}, l)
		s.begin(&Honest{Addr: s.Addr, In: l.Clients, Conns: 30, Pipeline: 50})
		s.eventually(func() bool {
			for _, n := range s.clients.Each() {
				if n < 500 && s.clients.Report().First == nil {
					return false
				}
			}
			return true
		}, func() string { return fmt.Sprintf("honest clients have had %v answers", s.clients.Each()) })
		c := l.Counts()
		if c.Lost < 50 || c.Overtaken < 50 || c.Overflowed > 0 {
			t.Errorf("the link was to lose packets and have some overtake others: %+v", c)
		}
		t.Logf("the link: %+v", c)
		l.Set(Weather{})
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
	onModelsAtOnce(t, func(t *testing.T, model string) {
		const n = 50
		l := link(t, Weather{})
		s := serve(t, spec{
			Addr: "0.0.0.0:0", Model: model,
			Limits: myriad.Limits{IdleTimeout: 4 * time.Second, WriteTimeout: time.Second},
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
		l.Cut()
		var p pushed
		s.ask("push", &p)
		if p.Sent != n {
			t.Fatalf("more is sent to %d connections: %+v", n, p)
		}
		s.round()
		s.counts("all are closed", func(st myriad.Stats) bool { return st.Closed.Write+st.Closed.Reset == n && st.Closed.Idle == n })
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

// The library's own link: in fine weather nothing is lost or reordered, and when
// it is cut nothing arrives.
func TestLink(t *testing.T) {
	l := link(t, Weather{Delay: 10 * time.Millisecond})
	var echo net.Listener
	err := l.Server.Do(func() (err error) {
		echo, err = net.Listen("tcp", net.JoinHostPort(ServerAddr.String(), "0"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	var c net.Conn
	begun := time.Now()
	if err := l.Clients.Do(func() (err error) { c, err = net.DialTimeout("tcp", echo.Addr().String(), patience); return err }); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if took := time.Since(begun); took < 20*time.Millisecond {
		t.Errorf("connecting took %v over a link with a delay of 10 ms each way", took)
	}
	if !strings.HasPrefix(c.LocalAddr().String(), ClientAddr.String()+":") {
		t.Errorf("connected from %v", c.LocalAddr())
	}
	for end := time.Now().Add(patience); l.Counts().Passed < 3 && time.Now().Before(end); { // of a handshake
		time.Sleep(time.Millisecond)
	}
	if n := l.Counts(); n.Passed < 3 || n.Lost+n.Cut+n.Overflowed+n.Overtaken > 0 {
		t.Errorf("%+v", n)
	}
	peer, err := echo.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	l.Cut()
	c.Write([]byte("x"))
	peer.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := peer.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("over a cut link came %d bytes, %v", n, err)
	}
	l.Mend()
	peer.SetReadDeadline(time.Now().Add(patience))
	if _, err := peer.Read(make([]byte, 1)); err != nil {
		t.Errorf("over a mended link: %v", err)
	}
}
