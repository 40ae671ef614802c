package tcp

import (
	"net"
	"testing"
)

// A server listens on the given address and reports it: 0.0.0.0 is IPv4, no host is both IPv4 and
// IPv6.
func TestWildcard(t *testing.T) {
	probe, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Skip("no IPv6 here: ", err)
	}
	probe.Close()
	forEachModel(t, func(t *testing.T, model string, loops int) {
		for addr, want := range map[string]struct {
			host   string
			v4, v6 bool
		}{
			"0.0.0.0:0": {"0.0.0.0", true, false},
			":0":        {"::", true, true},
			"[::]:0":    {"::", true, true},
		} {
			s := startServer(t, &Server{Addr: addr, Model: model, Loops: loops})
			host, port, _ := net.SplitHostPort(s.addr)
			if host != want.host {
				t.Errorf("%s is announced as %s, want %s", addr, s.addr, want.host)
			}
			for at, takes := range map[string]bool{"127.0.0.1": want.v4, "::1": want.v6} {
				c, err := net.Dial("tcp", net.JoinHostPort(at, port))
				if (err == nil) != takes {
					t.Errorf("%s: dialling %s: %v; want it taken: %v", addr, at, err, takes)
				}
				if err == nil {
					c.Close()
				}
			}
		}
	})
}
