package tcp

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
)

// TrustedProxies follows the same rules as Allow and Deny.
func TestProxied(t *testing.T) {
	is := newTrustedProxyMatcher([]netip.Prefix{
		netip.MustParsePrefix("::ffff:10.0.0.0/104"), netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("fe80::/64"),
	})
	for a, want := range map[string]bool{
		"10.1.2.3": true, "::ffff:10.1.2.3": true, "192.0.2.7": true, "::ffff:192.0.2.7": true, "fe80::1%eth0": true,
		"11.0.0.1": false, "::ffff:11.0.0.1": false, "fe80:0:0:1::1": false, "::1": false,
	} {
		if got := is(netip.MustParseAddr(a)); got != want {
			t.Errorf("%s is a proxy: %v, want %v", a, got, want)
		}
	}
	if !is(netip.Addr{}) {
		t.Error("a unix socket is not taken for a proxy")
	}
}

// Matching takes no longer with many prefixes: a linear search would need 2¹⁷ × 2¹⁷ comparisons
// here, which takes minutes.
func TestProxiedMany(t *testing.T) {
	const n = 1 << 17
	var list []netip.Prefix
	for i := range n {
		list = append(list, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 15), byte(i >> 7), byte(i << 1)}), 32))
	}
	is, found := newTrustedProxyMatcher(list), 0
	for _, p := range list {
		if is(p.Addr()) && !is(p.Addr().Next()) {
			found++
		}
	}
	if found != n {
		t.Errorf("%d addresses of %d are told from those next to them", found, n)
	}
}

// startBehindProxy starts a server that trusts clients on the loopback as proxies.
func startBehindProxy(t *testing.T, srv *Server) *started {
	srv.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	return startServer(t, srv)
}

// waitRefused waits until the rejections are counted and no connection is open.
func (s *started) waitRefused(t *testing.T, want Refusals) {
	t.Helper()
	eventually(t, func() bool { return s.Stats().Refused == want && s.Stats().Open == 0 }, func() string {
		return fmt.Sprintf("refused are %+v and %d are open, want %+v and none", s.Stats().Refused, s.Stats().Open, want)
	})
}

// For a proxy that reports no address, its own address is checked.
func TestProxyWithoutAddress(t *testing.T) {
	const signature = "\r\n\r\n\x00\r\nQUIT\n"
	local := signature + "\x20\x00\x00\x00"
	ofUnix := signature + "\x21\x31\x00\xd8" + strings.Repeat("\x00", 216)
	forEachModel(t, func(t *testing.T, model string, loops int) {
		s := startBehindProxy(t, &Server{Model: model, Loops: loops, Limits: Limits{MaxConnsPerSource: 1}})
		for range 3 { // whose place comes back
			c := dial(t, s.addr)
			c.Send("PROXY UNKNOWN\r\n")
			c.Exchange("hello", "hello")
			before := s.Stats().Refused
			for _, header := range []string{"PROXY UNKNOWN\r\n", local, ofUnix} {
				second := dial(t, s.addr)
				second.Send(header)
				if got := second.ExpectClosed(); got != "" {
					t.Errorf("one too many after %q has got %q", header, got)
				}
			}
			c.Close()
			s.waitRefused(t, Refusals{Source: before.Source + 3})
		}
	})
	forEachModel(t, func(t *testing.T, model string, loops int) {
		s := startBehindProxy(t, &Server{Model: model, Loops: loops, Deny: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}})
		c := dial(t, s.addr)
		c.Send(local + "hello\n")
		if got := c.ExpectClosed(); got != "" {
			t.Errorf("a denied proxy has got %q", got)
		}
		s.waitRefused(t, Refusals{Denied: 1})
	})
}

// A client that is rejected because of its PROXY header gets the answer of Refuse.
func TestRefuseBehindProxy(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, loops int) {
		why := make(chan string, 10)
		s := startBehindProxy(t, &Server{
			Model: model, Loops: loops,
			Deny: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")},
			Refuse: func(remote net.Addr, err error) []byte {
				why <- fmt.Sprintf("%v %v", remote, err)
				return []byte("not you\n")
			},
		})
		c := dial(t, s.addr)
		c.Send("PROXY TCP4 198.51.100.7 192.0.2.99 1234 80\r\nhello\n")
		if got := c.ExpectClosed(); got != "not you\n" {
			t.Errorf("got %q, want the answer", got)
		}
		c.Close()
		s.waitRefused(t, Refusals{Denied: 1})
		close(why) // nobody is refused any more
		if got := <-why; got != "198.51.100.7:1234 "+ErrDenied.Error() || len(why) != 0 {
			t.Errorf("Refuse was called for %q and %d more times, want once for the client, which is denied", got, len(why))
		}
	})
}

// An unspecified source is rejected: it can't be distinguished from no source, so its place would
// not be released.
func TestProxyUnspecified(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, loops int) {
		s := startBehindProxy(t, &Server{Model: model, Loops: loops, Limits: Limits{MaxConnsPerSource: 1}})
		sources := []string{"TCP6 :: ::1 0 80", "TCP6 :: ::1 1234 80", "TCP4 0.0.0.0 192.0.2.1 0 80", "TCP6 ::ffff:0.0.0.0 ::1 0 80"}
		for _, source := range sources {
			c := dial(t, s.addr)
			c.Send("PROXY " + source + "\r\nhello\n")
			if got := c.ExpectClosed(); got != "" {
				t.Errorf("%s has got %q", source, got)
			}
			c.Close()
		}
		s.waitRefused(t, Refusals{Proxy: int64(len(sources))})
	})
}
