package tcp

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
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
				if err := s.Adopt(accepted, []byte("before\nhalf")); err != nil {
					t.Errorf("Adopt: %v", err)
					return
				}
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
		c.Exchange("hello", "hello")
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
		if err := s.Adopt(accepted, nil); err != ErrServerClosed {
			t.Errorf("after the end: %v; want ErrServerClosed", err)
		}
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
		if err := s.Adopt(nc, nil); !errors.Is(err, ErrBadUse) || !strings.Contains(err.Error(), text) {
			t.Errorf("Adopt of %T: %v; want ErrBadUse with %q", nc, err, text)
		}
	}
	if err := s.Adopt(accepted, make([]byte, 64<<10+1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("Adopt with too much: %v; want ErrTooLarge", err)
	}
	if err := new(Server).Adopt(accepted, nil); !errors.Is(err, ErrServerClosed) || !strings.Contains(err.Error(), "not started") {
		t.Errorf("before the start: %v; want ErrServerClosed", err)
	}
}

// detachingHandler detaches a connection after the line "go".
type detachingHandler struct {
	Base
	taken  chan net.Conn
	unread chan string
	closed chan error
	errs   chan error
}

func newDetachingHandler() *detachingHandler {
	return &detachingHandler{taken: make(chan net.Conn, 100), unread: make(chan string, 100), closed: make(chan error, 100), errs: make(chan error, 100)}
}

func (d *detachingHandler) Received(c *Conn, in []byte) int {
	i := bytes.Index(in, []byte("go\n"))
	if i < 0 {
		return 0
	}
	c.Write(in[:i+3])
	if err := c.Detach(func(nc net.Conn, unread []byte) {
		d.unread <- string(unread)
		d.taken <- nc
	}); err != nil {
		d.errs <- err
		return len(in)
	}
	if err := c.Detach(nil); !errors.Is(err, ErrBadUse) {
		d.errs <- fmt.Errorf("a second Detach: %w", err)
	}
	return i + 3
}

func (d *detachingHandler) Closed(_ *Conn, why error) { d.closed <- why }

// A detached connection works with package net, and can be adopted again.
func TestDetach(t *testing.T) {
	forEachSetup(t, func(t *testing.T, srv *Server) {
		d := newDetachingHandler()
		srv.Handler = d
		s := startServer(t, srv)
		if srv.Limits.MaxConns > 0 {
			io.WriteString(dial(t, s.addr), "go\n")
			if err := <-d.errs; err != ErrShard {
				t.Errorf("Detach with shards: %v; want ErrShard", err)
			}
			return
		}
		c := dial(t, s.addr)
		for round := range 3 {
			large := strings.Repeat("x", round*10_000)
			io.WriteString(c, large+"go\nunread")
			c.Expect(large + "go\n")
			unread, nc := <-d.unread, <-d.taken
			if why := <-d.closed; why != ErrDetached {
				t.Errorf("Closed(%v); want ErrDetached", why)
			}
			io.WriteString(c, ", late")
			testkit.NewConn(t, nc).Expect(strings.TrimPrefix("unread, late", unread))
			io.WriteString(nc, "by net\n")
			c.Expect("by net\n")
			requireNoError(t, s.Adopt(nc, nil))
		}
		select {
		case err := <-d.errs:
			t.Error(err)
		default:
		}
	})
}

// Pending output is sent before a connection is detached. If the peer resets it first, it closes
// normally.
func TestDetachSendsFirst(t *testing.T) {
	forEachSetup(t, func(t *testing.T, srv *Server) {
		if srv.Limits.MaxConns > 0 {
			return // shards can't
		}
		d := newDetachingHandler()
		const size = 16 << 20
		srv.Handler = openedFuncHandler{d, func(c *Conn) { c.Write(make([]byte, size)) }}
		srv.Limits.MaxUnsent, srv.Limits.HighWater, srv.Limits.MaxMessage = 2*size, 2*size, 1<<20
		s := startServer(t, srv)
		c, gone := dial(t, s.addr), dial(t, s.addr)
		io.WriteString(c, "go\n")
		io.WriteString(gone, "go\n")
		_, err := io.CopyN(io.Discard, c, size)
		requireNoError(t, err)
		c.Expect("go\n")
		nc := <-d.taken
		nc.Close()
		if why := <-d.closed; why != ErrDetached {
			t.Errorf("Closed(%v); want ErrDetached", why)
		}
		c.ExpectEOF("")
		gone.Reset()
		if why := <-d.closed; !errors.Is(why, syscall.ECONNRESET) {
			t.Errorf("Closed(%v) of one that has gone before; want ECONNRESET", why)
		}
		if len(d.taken) > 0 {
			t.Error("it was given up all the same")
		}
	})
}

// openedFuncHandler overrides Opened of a Handler.
type openedFuncHandler struct {
	Handler
	f func(c *Conn)
}

func (o openedFuncHandler) Opened(c *Conn) { o.f(c) }
