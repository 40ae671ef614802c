package tcp

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
)

// Matching takes no longer with many prefixes: a linear search would need 2¹⁷ × 2¹⁷ comparisons
// here, which takes minutes.
func TestManyTrustedProxies(t *testing.T) {
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

// expectRefused sends input on a connection, which gets the answer and is closed, and waits until it is counted.
func (s *started) expectRefused(t *testing.T, input, answer string, want Refusals) {
	t.Helper()
	c := dial(t, s.addr)
	c.Send(input)
	if got := c.ExpectClosed(); got != answer {
		t.Errorf("%q has got %q, want %q", input, got, answer)
	}
	c.Close()
	eventually(t, func() bool { return s.Stats().Refused == want }, func() string {
		return fmt.Sprintf("refused are %+v, want %+v", s.Stats().Refused, want)
	})
}

// For a proxy that reports no address, its own address is checked.
func TestProxyWithoutAddress(t *testing.T) {
	const signature, unknown = "\r\n\r\n\x00\r\nQUIT\n", "PROXY UNKNOWN\r\n"
	local := signature + "\x20\x00\x00\x00"
	ofUnix := signature + "\x21\x31\x00\xd8" + strings.Repeat("\x00", 216)
	forEachModel(t, func(t *testing.T, model string, loops int) {
		s := startBehindProxy(t, &Server{Model: model, Loops: loops, Limits: Limits{MaxConnsPerSource: 1}})
		for round := range int64(2) { // whose place comes back
			c := dial(t, s.addr)
			c.Send(unknown)
			c.ExchangeLine("hello", "hello")
			for i, header := range []string{unknown, local, ofUnix} {
				s.expectRefused(t, header, "", Refusals{Source: 3*round + int64(i) + 1})
			}
			c.Close()
			s.waitOpen(t, 0)
		}
		s = startBehindProxy(t, &Server{Model: model, Loops: loops, Deny: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}})
		s.expectRefused(t, local+"hello\n", "", Refusals{Denied: 1})
	})
}

// A client that is rejected because of its PROXY header gets the answer of Refuse.
func TestRefuseBehindProxy(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, loops int) {
		calls := make(chan string, 10)
		s := startBehindProxy(t, &Server{
			Model: model, Loops: loops,
			Deny: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")},
			Refuse: func(remote net.Addr, err error) []byte {
				calls <- fmt.Sprintf("%v %v", remote, err)
				return []byte("not you\n")
			},
		})
		s.expectRefused(t, "PROXY TCP4 198.51.100.7 192.0.2.99 1234 80\r\nhello\n", "not you\n", Refusals{Denied: 1})
		if got := <-calls; got != "198.51.100.7:1234 "+ErrDenied.Error() || len(calls) != 0 {
			t.Errorf("Refuse was called for %q and %d more times, want once for the client, which is denied", got, len(calls))
		}
	})
}

// An unspecified source is rejected: it can't be distinguished from no source, so its place would not be released.
func TestProxyUnspecified(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, loops int) {
		s := startBehindProxy(t, &Server{Model: model, Loops: loops, Limits: Limits{MaxConnsPerSource: 1}})
		for i, source := range []string{"TCP6 :: ::1 0 80", "TCP6 :: ::1 1234 80", "TCP4 0.0.0.0 192.0.2.1 0 80", "TCP6 ::ffff:0.0.0.0 ::1 0 80"} {
			s.expectRefused(t, "PROXY "+source+"\r\nhello\n", "", Refusals{Proxy: int64(i) + 1})
		}
	})
}
