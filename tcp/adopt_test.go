package tcp

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// newConnPair returns both ends of a connection made with package net.
func newConnPair(t *testing.T) (c *testkit.Conn, accepted net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	requireNoError(t, err)
	defer l.Close()
	c = dial(t, l.Addr().String())
	accepted, err = l.Accept()
	requireNoError(t, err)
	t.Cleanup(func() { accepted.Close() })
	return c, accepted
}

// Bytes passed to Adopt are the first input, and an adopted connection behaves like others.
func TestAdopt(t *testing.T) {
	forEachSetup(t, func(t *testing.T, srv *Server) {
		srv.Handler = Lines(MessageFunc(func(c *Conn, line []byte) {
			fmt.Fprintf(c, "%s to %v\n", line, c.RemoteAddr())
		}))
		s := startServer(t, srv)
		var all sync.WaitGroup
		for range 20 {
			c, accepted := newConnPair(t)
			all.Go(func() {
				expectNoError(t, s.Adopt(accepted, []byte("before\nhalf")))
				io.WriteString(c, " a line\n")
				c.CloseWrite()
				want := fmt.Sprintf("before to %v\nhalf a line to %[1]v\n", c.LocalAddr())
				if got, err := io.ReadAll(c); string(got) != want || err != nil {
					t.Errorf("got %q, %v; want %q, and the end", got, err, want)
				}
				c.Close()
			})
		}
		all.Wait()
		waitFor(t, "not all have closed", func() bool { return s.Stats().Closed.Peer == 20 })
		if n := s.Stats(); n.Accepted != 20 || n.AcceptErrors != 0 {
			t.Errorf("%d counted as accepted, %d errors; want 20, 0", n.Accepted, n.AcceptErrors)
		}
	})
}

// Limits and the server's end apply to adopted connections.
func TestAdoptLimits(t *testing.T) {
	forEachSetup(t, func(t *testing.T, srv *Server) {
		srv.Limits.MaxConnsPerSource = 1
		srv.Refuse = func(_ net.Addr, why error) []byte { return []byte("not you: " + why.Error()) }
		s := startServer(t, srv)
		c, accepted := newConnPair(t)
		requireNoError(t, s.Adopt(accepted, nil))
		c.ExchangeLine("hello", "hello")
		other, accepted := newConnPair(t)
		requireNoError(t, s.Adopt(accepted, nil))
		if got, _ := io.ReadAll(other); !bytes.HasPrefix(got, []byte("not you")) {
			t.Errorf("one too many got %q", got)
		}
		if n := s.Stats(); n.Refused.Source != 1 { // before it was answered
			t.Errorf("refused: %+v; want 1 for its source", n.Refused)
		}
		s.Close()
		_, accepted = newConnPair(t)
		expectError(t, "Adopt after the end", s.Adopt(accepted, nil), ErrServerClosed)
		if err := accepted.SetDeadline(time.Now()); err != nil {
			t.Errorf("after an error the connection is not the caller's: %v", err)
		}
	})
}

func TestAdoptBadUse(t *testing.T) {
	s := startServer(t, &Server{})
	one, _ := net.Pipe()
	_, accepted := newConnPair(t)
	for text, nc := range map[string]net.Conn{"*net.pipe": one, "*tls.Conn": tls.Client(accepted, nil), "struct": struct{ net.Conn }{accepted}, "<nil>": nil} {
		expectError(t, "Adopt", s.Adopt(nc, nil), ErrBadUse, text)
	}
	expectError(t, "Adopt with too much", s.Adopt(accepted, make([]byte, 64<<10+1)), ErrTooLarge)
}

// A connection is detached after the line "go". It works with package net, and can be adopted again.
func TestDetach(t *testing.T) {
	const size = 16 << 20
	forEachSetup(t, func(t *testing.T, srv *Server) {
		var opens atomic.Int64
		taken, unread := make(chan net.Conn, 10), make(chan string, 10)
		closed, errs := make(chan error, 10), make(chan error, 10)
		srv.Handler = hooks{closed: func(why error) { closed <- why }, opened: func(c *Conn) {
			if opens.Add(1) <= 2 { // not when it is adopted
				c.Write(make([]byte, size))
			}
		}, received: func(c *Conn, in []byte) int {
			i := bytes.Index(in, []byte("go\n"))
			if i < 0 {
				return 0
			}
			c.Write(in[:i+3])
			if err := c.Detach(func(nc net.Conn, rest []byte) {
				unread <- string(rest)
				taken <- nc
			}); err != nil {
				errs <- err
				return len(in)
			}
			expectError(t, "a second Detach", c.Detach(nil), ErrBadUse)
			return i + 3
		}}
		if srv.Limits.MaxConns > 0 {
			dial(t, startServer(t, srv).addr).Send("go\n")
			expectReason(t, "Detach with shards", errs, ErrShard)
			return
		}
		srv.Limits.MaxUnsent, srv.Limits.HighWater, srv.Limits.MaxMessage = 2*size, 2*size, 1<<20
		s := startServer(t, srv)
		c, gone := dial(t, s.addr), dial(t, s.addr)
		gone.Send("go\n")
		s.waitOpen(t, 2)
		for round := range 3 {
			large := strings.Repeat("x", round*10_000)
			c.Send(large + "go\nunread")
			if round == 0 {
				_, err := io.CopyN(io.Discard, c.R, size)
				requireNoError(t, err)
			}
			c.Expect(large + "go\n")
			rest, nc := <-unread, <-taken
			expectReason(t, "detached", closed, ErrDetached)
			c.Send(", late")
			testkit.NewConn(t, nc).Expect(strings.TrimPrefix("unread, late", rest))
			io.WriteString(nc, "by net\n")
			c.Expect("by net\n")
			requireNoError(t, s.Adopt(nc, nil))
		}
		gone.Reset()
		expectReason(t, "one that has gone before", closed, syscall.ECONNRESET)
		if len(taken) > 0 {
			t.Error("it was given up all the same")
		}
		if len(errs) > 0 {
			t.Error(<-errs)
		}
	})
}
