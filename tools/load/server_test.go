package load

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/myriad-go/myriad/internal/engine/models"
)

// testServer serves each connection with a function, on package net. It is
// closed, and waited for, at the end of the test.
type testServer struct {
	ln    net.Listener
	mu    sync.Mutex
	conns []net.Conn
	wait  sync.WaitGroup
}

func serve(t *testing.T, handle func(c net.Conn)) *testServer {
	t.Helper()
	return serveAt(t, "tcp", "127.0.0.1:0", handle)
}

func serveAt(t *testing.T, network, addr string, handle func(c net.Conn)) *testServer {
	t.Helper()
	ln, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	s := &testServer{ln: ln}
	s.wait.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns = append(s.conns, c)
			s.mu.Unlock()
			s.wait.Go(func() {
				defer c.Close()
				handle(c)
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		s.closeConns()
		s.wait.Wait()
	})
	return s
}

func (s *testServer) addr() string { return s.ln.Addr().String() }

// accepted is how many connections there have been.
func (s *testServer) accepted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// closeConns closes the connections that there are.
func (s *testServer) closeConns() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		c.Close()
	}
}

// echo answers with what comes.
func echo(c net.Conn) { _, _ = io.Copy(onlyWriter{c}, onlyReader{c}) }

// onlyReader and onlyWriter keep io.Copy from moving the bytes in the kernel,
// where a test's answers would be cut at other places.
type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)

// silent reads and does not answer.
func silent(c net.Conn) { _, _ = io.Copy(io.Discard, onlyReader{c}) }

// refusing is an address at which nobody listens.
func refusing(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// availableModels are the names of those that can run here, of the last one alone with
// -short.
func availableModels() (names []string) {
	for _, m := range models.All() {
		if m.Available() == nil {
			names = append(names, m.Name)
		}
	}
	if testing.Short() {
		names = names[len(names)-1:]
	}
	return names
}

// eachModel runs a test on every model that can run here, on all at a time.
func eachModel(t *testing.T, test func(t *testing.T, model string)) {
	for _, name := range availableModels() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, name)
		})
	}
}

func addrs(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, s := range texts {
		list = append(list, netip.MustParseAddr(s))
	}
	return list
}
