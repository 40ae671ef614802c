package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// startListeners starts a server that reports the listener of each connection, and returns the
// addresses.
func startListeners(t *testing.T, srv *Server) (addrs []string, s *started) {
	t.Helper()
	srv.Handler = Lines(MessageFunc(func(c *Conn, line []byte) {
		fmt.Fprintf(c, "%s by %s, tls %t\n", line, c.Listener(), c.TLS() != nil)
	}))
	s = startServer(t, srv)
	for _, l := range s.ListenerStats() {
		addrs = append(addrs, l.Addr.String())
	}
	return addrs, s
}

// One server listens on plain TCP, TLS and a unix socket, each with its options, under every
// model. A drain closes all and removes the file.
func TestListeners(t *testing.T) {
	server, client := identity()
	for _, model := range Models() {
		t.Run(model, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s")
			addrs, s := startListeners(t, &Server{
				Addr: "127.0.0.1:0", Model: model, Loops: 2,
				Listeners: []Listener{
					{Name: "secure", Addr: "127.0.0.1:0", TLSConfig: server, Backlog: 16},
					{Name: "local", Network: "unix", Addr: path, Mode: 0o600, MaxConns: 1},
					{Name: "proxied", Addr: "127.0.0.1:0", TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
				},
			})
			dial(t, addrs[0]).Exchange("a", "a by 127.0.0.1:0, tls false")
			testkit.DialTLS(t, addrs[1], client).Exchange("b", "b by secure, tls true")
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("the socket's file: %v, %v; want mode 0600", info, err)
			}
			local := dial(t, path)
			local.Exchange("c", "c by local, tls false")
			dial(t, addrs[3]).Exchange("PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nd", "d by proxied, tls false")
			full := dial(t, path)
			full.ExpectClosed()
			var got []string
			for _, l := range s.ListenerStats() {
				got = append(got, fmt.Sprintf("%s %s %d %d %d", l.Name, l.Addr.Network(), l.Open, l.Accepted, l.Refused))
			}
			if want := "127.0.0.1:0 tcp 1 1 0, secure tcp 1 1 0, local unix 1 1 1, proxied tcp 1 1 0"; strings.Join(got, ", ") != want {
				t.Errorf("ListenerStats: %s, want %s", strings.Join(got, ", "), want)
			}
			if n := s.Stats().Refused.Full; n != 1 {
				t.Errorf("%d are counted as refused, want 1", n)
			}
			local.Close() // which makes room
			waitFor(t, "a closed connection keeps its place", func() bool { return s.ListenerStats()[2].Open == 0 })
			dial(t, path).Exchange("e", "e by local, tls false")
			s.stop()
			expectNoError(t, s.waitResult(t))
			if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the socket's file after the end: %v, want none", err)
			}
			for _, addr := range []string{addrs[0], addrs[1], addrs[3]} {
				if c, err := net.Dial("tcp", addr); err == nil {
					c.Close()
					t.Errorf("%s is listened on after the end", addr)
				}
			}
		})
	}
}

// Serve also listens on Listeners, and Addr may be empty.
func TestListenersWithServe(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	requireNoError(t, err)
	given, err := net.Listen("tcp", "127.0.0.1:0")
	requireNoError(t, err)
	srv := &Server{
		Handler:   Lines(MessageFunc(func(c *Conn, line []byte) { fmt.Fprintln(c, c.Listener()) })),
		Listeners: []Listener{{Listener: NamedListener{Name: "given", Listener: given}}},
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ctx, l) }()
	dial(t, l.Addr().String()).Exchange("a", l.Addr().String())
	dial(t, given.Addr().String()).Exchange("b", "given")
	cancel()
	expectNoError(t, <-ended)
	addrs, _ := startListeners(t, &Server{Listeners: []Listener{{Addr: "127.0.0.1:0"}}})
	dial(t, addrs[0]).Exchange("c", "c by 127.0.0.1:0, tls false")
}

func TestBadListeners(t *testing.T) {
	some := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	for _, test := range []struct {
		name string
		srv  *Server
		want string
	}{
		{"nothing", &Server{}, "Server.Addr is empty; expected"},
		{"no address", &Server{Listeners: []Listener{{}}}, "Server.Listeners[0].Addr is empty; expected"},
		{"two addresses", &Server{Listeners: []Listener{{Addr: ":0", Listener: &net.TCPListener{}}}}, "Listeners[0].Addr is \":0\" and Listener is set; expected"},
		{"network", &Server{Addr: ":0", Listeners: []Listener{{Addr: ":0", Network: "udp"}}}, `Listeners[0].Network is "udp"; expected`},
		{"one name for two", &Server{Listeners: []Listener{{Addr: ":0", Name: "a"}, {Addr: ":0", Name: "a"}}}, `Listeners[1].Name is "a", which another listener has; expected`},
		{"mode of a port", &Server{Listeners: []Listener{{Addr: ":0", Mode: 0o600}}}, "Listeners[0].Mode is 0600; expected"},
		{"mode with more", &Server{Listeners: []Listener{{Network: "unix", Addr: "s", Mode: fs.ModeDir | 0o600}}}, "Listeners[0].Mode is"},
		{"bound", &Server{Listeners: []Listener{{Addr: ":0", MaxConns: -1}}}, "Listeners[0].MaxConns is -1; expected"},
		{"backlog", &Server{Listeners: []Listener{{Addr: ":0", Backlog: 1 << 17}}}, "Listeners[0].Backlog is 131072; expected"},
		{"certificate", &Server{Listeners: []Listener{{Addr: ":0", TLSConfig: &tls.Config{}}}}, "Listeners[0].TLSConfig has no certificate; expected"},
		{"prefix", &Server{Listeners: []Listener{{Addr: ":0", TrustedProxies: make([]netip.Prefix, 1)}}}, "Listeners[0].TrustedProxies[0] is"},
		{"options of an Addr that is not there", &Server{TrustedProxies: some, Listeners: []Listener{{Addr: ":0"}}}, "Addr is empty; expected them in each"},
		{"too many", &Server{Addr: ":0", Listeners: make([]Listener, 32)}, "33 listeners; expected at most 32"},
		{"kind", &Server{Listeners: []Listener{{Listener: struct{ net.Listener }{}}}}, "Listeners[0].Listener: listener of type"},
		{"made by the caller, with processes", &Server{Processes: 2, Listeners: []Listener{{Listener: &net.TCPListener{}}}}, "Listeners[0].Listener is set with Server.Processes 2; expected"},
		{"unix with processes", &Server{Processes: 2, Listeners: []Listener{{Network: "unix", Addr: "s"}}}, "Listeners[0].Network is unix and"},
	} {
		test.srv.Handler = Base{}
		if test.srv.Addr != "" {
			test.srv.Addr = "127.0.0.1:0"
		}
		err := test.srv.ListenAndServe(context.Background())
		if !errors.Is(err, ErrBadConfig) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want ErrBadConfig with %q", test.name, err, test.want)
		}
	}
}
