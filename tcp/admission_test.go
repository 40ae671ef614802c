package tcp

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
)

// startBehindProxy starts a server that trusts clients on the loopback as proxies.
func startBehindProxy(t *testing.T, srv *Server) *started {
	srv.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	return startServer(t, srv)
}

// A client that is rejected because of its PROXY header gets the answer of Refuse. For a proxy that reports no address,
// its own address is checked. An unspecified source is rejected: it can't be distinguished from no source, so its
// place would not be released.
func TestRefuseBehindProxy(t *testing.T) {
	const signature, unknown = "\r\n\r\n\x00\r\nQUIT\n", "PROXY UNKNOWN\r\n"
	local := signature + "\x20\x00\x00\x00"
	ofUnix := signature + "\x21\x31\x00\xd8" + strings.Repeat("\x00", 216)
	forEachModel(t, func(t *testing.T, model string, loops int) {
		calls := make(chan string, 20)
		s := startBehindProxy(t, &Server{
			Model: model, Loops: loops, Limits: Limits{MaxConnsPerSource: 1},
			Deny: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")},
			Refuse: func(remote net.Addr, err error) []byte {
				calls <- fmt.Sprintf("%v %v", remote, err)
				return []byte("not you\n")
			},
		})
		var want Refusals
		expectRefused := func(header, answer string, counter *int64) {
			t.Helper()
			c := dial(t, s.addr)
			c.Send(header)
			if got := c.ExpectClosed(); got != answer {
				t.Errorf("%q has got %q, want %q", header, got, answer)
			}
			c.Close()
			*counter++
			eventually(t, func() bool { return s.Stats().Refused == want }, func() string {
				return fmt.Sprintf("refused are %+v, want %+v", s.Stats().Refused, want)
			})
		}
		expectRefused("PROXY TCP4 198.51.100.7 192.0.2.99 1234 80\r\n", "not you\n", &want.Denied)
		if got := <-calls; got != "198.51.100.7:1234 "+ErrDenied.Error() || len(calls) != 0 {
			t.Errorf("Refuse was called for %q and %d more times, want once for the client, which is denied", got, len(calls))
		}
		for range 2 { // whose place comes back
			c := dial(t, s.addr)
			c.Send(unknown)
			c.ExchangeLine("hello", "hello")
			for _, header := range []string{unknown, local, ofUnix} {
				expectRefused(header, "not you\n", &want.Source)
			}
			c.Close()
			s.waitOpen(t, 0)
		}
		for _, source := range []string{"TCP6 :: ::1 0 80", "TCP6 :: ::1 1234 80", "TCP6 ::ffff:0.0.0.0 ::1 0 80"} {
			expectRefused("PROXY "+source+"\r\n", "", &want.Proxy)
		}
	})
}
