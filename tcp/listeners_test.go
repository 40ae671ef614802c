package tcp

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// listenerReporter answers a line with the connection's listener.
var listenerReporter = Lines(MessageFunc(func(c *Conn, line []byte) {
	fmt.Fprintf(c, "%s by %s, tls %t\n", line, c.Listener(), c.TLS() != nil)
}))

// One server listens on plain TCP, TLS and a unix socket, each with its options, under every model.
func TestListeners(t *testing.T) {
	t.Parallel() // mostly waits
	server, client := identity()
	forEachModel(t, func(t *testing.T, model string, loops int) {
		path := filepath.Join(t.TempDir(), "s")
		s := startServer(t, &Server{
			Addr: "127.0.0.1:0", Model: model, Loops: loops, Handler: listenerReporter,
			Listeners: []Listener{
				{Name: "secure", Addr: "127.0.0.1:0", TLSConfig: server, Backlog: 16},
				{Name: "local", Network: "unix", Addr: path, Mode: 0o600, MaxConns: 1},
				{Name: "proxied", Addr: "127.0.0.1:0", TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
			},
		})
		var addrs []string
		for _, l := range s.ListenerStats() {
			addrs = append(addrs, l.Addr.String())
		}
		dial(t, addrs[0]).ExchangeLine("a", "a by 127.0.0.1:0, tls false")
		testkit.DialTLS(t, addrs[1], client).ExchangeLine("b", "b by secure, tls true")
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the socket's file: %v, %v; want mode 0600", info, err)
		}
		local := dial(t, path)
		local.ExchangeLine("c", "c by local, tls false")
		dial(t, addrs[3]).ExchangeLine("PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nd", "d by proxied, tls false")
		dial(t, path).ExpectClosed()
		var got []string
		for _, l := range s.ListenerStats() {
			got = append(got, fmt.Sprintf("%s %s %d %d %d", l.Name, l.Addr.Network(), l.Open, l.Accepted, l.Refused))
		}
		expectEqual(t, "ListenerStats", strings.Join(got, ", "),
			"127.0.0.1:0 tcp 1 1 0, secure tcp 1 1 0, local unix 1 1 1, proxied tcp 1 1 0")
		expectEqual(t, "counted as refused", s.Stats().Refused.Full, 1)
		local.Close() // which makes room
		waitFor(t, "a closed connection keeps its place", func() bool { return s.ListenerStats()[2].Open == 0 })
		dial(t, path).ExchangeLine("e", "e by local, tls false")
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

// Serve also listens on Listeners, and Addr may be empty.
func TestListenersWithServe(t *testing.T) {
	var addrs []string
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		requireNoError(t, err)
		addrs = append(addrs, l.Addr().String())
		return l
	}
	main, given := listen(), listen()
	srv := &Server{Handler: listenerReporter, Listeners: []Listener{{Listener: NamedListener{Name: "given", Listener: given}}}}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ctx, main) }()
	for i, name := range []string{addrs[0], "given"} {
		c := dial(t, addrs[i])
		c.ExchangeLine("a", "a by "+name+", tls false")
		c.Close()
	}
	cancel()
	expectNoError(t, <-ended)
	s := startServer(t, &Server{Handler: listenerReporter, Listeners: []Listener{{Addr: "127.0.0.1:0"}}})
	dial(t, s.addr).ExchangeLine("c", "c by 127.0.0.1:0, tls false")
}

// A server listens on the given address and reports it: 0.0.0.0 is IPv4, no host is both IPv4 and IPv6.
func TestWildcard(t *testing.T) {
	probe, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Skip("no IPv6 here: ", err)
	}
	probe.Close()
	forEachModel(t, func(t *testing.T, model string, loops int) {
		for addr, want := range map[string]struct {
			host string
			v6   bool
		}{"0.0.0.0:0": {"0.0.0.0", false}, ":0": {"::", true}, "[::]:0": {"::", true}} {
			s := startServer(t, &Server{Addr: addr, Model: model, Loops: loops})
			host, port, _ := net.SplitHostPort(s.addr)
			expectEqual(t, addr+" is announced with the host", host, want.host)
			for at, takes := range map[string]bool{"127.0.0.1": true, "::1": want.v6} {
				c, err := net.Dial("tcp", net.JoinHostPort(at, port))
				expectEqual(t, addr+" takes connections to "+at, err == nil, takes)
				if err == nil {
					c.Close()
				}
			}
		}
	})
}

// At its end a server removes its unix socket but not that of a successor, even if the inode number is reused.
func TestUnixSuccessor(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("an open socket's file can't be replaced")
	}
	path := filepath.Join(t.TempDir(), "s")
	first := startServer(t, &Server{Network: "unix", Addr: path})
	requireNoError(t, os.Remove(path))
	second := startServer(t, &Server{Network: "unix", Addr: path})
	first.stop()
	expectNoError(t, first.waitResult(t))
	c := dial(t, path)
	c.ExchangeLine("hello", "hello")
	c.Close()
	second.stop()
	expectNoError(t, second.waitResult(t))
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is there after the end: %v", err)
	}
}

// A file that was written again does not count as the same file.
func TestSameSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	requireNoError(t, os.WriteFile(path, nil, 0o600))
	var infos []os.FileInfo
	for i := range 3 {
		at := time.Unix(1+int64(i/2), 0)
		requireNoError(t, os.Chtimes(path, at, at))
		info, err := os.Lstat(path)
		requireNoError(t, err)
		infos = append(infos, info)
	}
	if !isSameUnmodifiedFile(infos[0], infos[1]) || isSameUnmodifiedFile(infos[0], infos[2]) {
		t.Error("a file is not the same as itself, or the same as one of another time")
	}
}
