package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// many starts a server with several listeners, and gives their addresses.
func many(t *testing.T, srv *Server, n int) (addrs []string, s *started) {
	t.Helper()
	if srv.Handler == nil {
		srv.Handler = Lines(MessageFunc(func(c *Conn, line []byte) {
			fmt.Fprintf(c, "%s by %s, tls %t\n", line, c.Listener(), c.TLS() != nil)
		}))
	}
	srv.Limits.Linger = 50 * time.Millisecond
	listening := make(chan string, n)
	srv.Listening = func(a net.Addr) { listening <- a.String() }
	ctx, cancel := context.WithCancel(context.Background())
	s = &started{Server: srv, stop: cancel, err: make(chan error, 1)}
	go func() { s.err <- srv.ListenAndServe(ctx) }()
	t.Cleanup(func() {
		cancel()
		srv.Close()
	})
	for len(addrs) < n {
		select {
		case a := <-listening:
			addrs = append(addrs, a)
		case err := <-s.err:
			t.Fatalf("ListenAndServe: %v", err)
		case <-time.After(patience):
			t.Fatalf("the server listens at %v, want %d listeners", addrs, n)
		}
	}
	return addrs, s
}

// says asks a server and wants an answer.
func says(t *testing.T, c net.Conn, question, answer string) {
	t.Helper()
	c.SetDeadline(time.Now().Add(patience))
	fmt.Fprintln(c, question)
	got := make([]byte, len(answer)+1)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != answer+"\n" {
		t.Errorf("asked %q: %q, %v; want %q", question, got, err, answer)
	}
}

// One server, three doors: plain, TLS and a unix socket, each with its options, under
// every model. A drain closes all, and the file goes.
func TestListeners(t *testing.T) {
	https := httptest.NewTLSServer(nil) // whose certificate is at hand
	https.Close()
	for _, model := range Models() {
		t.Run(model, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s")
			addrs, s := many(t, &Server{
				Addr: "127.0.0.1:0", Model: model, Loops: 2,
				Listeners: []Listener{
					{Name: "secure", Addr: "127.0.0.1:0", TLSConfig: &tls.Config{Certificates: https.TLS.Certificates}, Backlog: 16},
					{Name: "local", Network: "unix", Addr: path, Mode: 0o600, MaxConns: 1},
					{Name: "proxied", Addr: "127.0.0.1:0", TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
				},
			}, 4)
			says(t, dial(t, addrs[0]), "a", "a by 127.0.0.1:0, tls false")
			says(t, tls.Client(dial(t, addrs[1]), &tls.Config{InsecureSkipVerify: true}), "b", "b by secure, tls true")
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("the socket's file: %v, %v; want mode 0600", info, err)
			}
			local := dialUnix(t, path)
			says(t, local, "c", "c by local, tls false")
			says(t, dial(t, addrs[3]), "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nd", "d by proxied, tls false")
			full := dialUnix(t, path)
			if _, err := full.Read(make([]byte, 1)); err == nil {
				t.Error("a listener with MaxConns 1 has let in a second connection")
			}
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
			says(t, dialUnix(t, path), "e", "e by local, tls false")
			s.stop()
			ok(t, s.result(t))
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

func dialUnix(t *testing.T, path string) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", path)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return c
}

// Serve listens at Listeners, too, and no Addr is needed.
func TestListenersWithServe(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	given, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	srv := &Server{
		Handler:   Lines(MessageFunc(func(c *Conn, line []byte) { fmt.Fprintln(c, c.Listener()) })),
		Listeners: []Listener{{Listener: NamedListener{Name: "given", Listener: given}}},
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ctx, l) }()
	says(t, dial(t, l.Addr().String()), "a", l.Addr().String())
	says(t, dial(t, given.Addr().String()), "b", "given")
	cancel()
	ok(t, <-ended)
	addrs, _ := many(t, &Server{Listeners: []Listener{{Addr: "127.0.0.1:0"}}}, 1)
	says(t, dial(t, addrs[0]), "c", "c by 127.0.0.1:0, tls false")
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
		{"two addresses", &Server{Listeners: []Listener{{Addr: ":0", Listener: &net.TCPListener{}}}}, "Listeners[0].Addr is \":0\", and Listener is set; expected"},
		{"network", &Server{Addr: ":0", Listeners: []Listener{{Addr: ":0", Network: "udp"}}}, `Listeners[0].Network is "udp"; expected`},
		{"one name for two", &Server{Listeners: []Listener{{Addr: ":0", Name: "a"}, {Addr: ":0", Name: "a"}}}, `Listeners[1].Name is "a"; expected`},
		{"mode of a port", &Server{Listeners: []Listener{{Addr: ":0", Mode: 0o600}}}, "Listeners[0].Mode is 0600; expected"},
		{"mode with more", &Server{Listeners: []Listener{{Network: "unix", Addr: "s", Mode: fs.ModeDir | 0o600}}}, "Listeners[0].Mode is"},
		{"bound", &Server{Listeners: []Listener{{Addr: ":0", MaxConns: -1}}}, "Listeners[0].MaxConns is -1; expected"},
		{"backlog", &Server{Listeners: []Listener{{Addr: ":0", Backlog: 1 << 17}}}, "Listeners[0].Backlog is 131072; expected"},
		{"certificate", &Server{Listeners: []Listener{{Addr: ":0", TLSConfig: &tls.Config{}}}}, "Listeners[0].TLSConfig has no certificate; expected"},
		{"prefix", &Server{Listeners: []Listener{{Addr: ":0", TrustedProxies: make([]netip.Prefix, 1)}}}, "Listeners[0].TrustedProxies[0] is"},
		{"options of an Addr that is not there", &Server{TrustedProxies: some, Listeners: []Listener{{Addr: ":0"}}}, "Addr is empty; expected those of each"},
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
