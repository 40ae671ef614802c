package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// waitAcceptPaused waits until Stats.AcceptingPaused is want.
func (s *started) waitAcceptPaused(t *testing.T, want bool) {
	t.Helper()
	waitFor(t, fmt.Sprintf("AcceptingPaused is %v", !want), func() bool { return s.Stats().AcceptingPaused == want })
}

// closeReasonHandler sends the reasons of closed connections to why.
type closeReasonHandler struct {
	Handler
	why chan error
}

func (h closeReasonHandler) Closed(c *Conn, why error) {
	h.Handler.Closed(c, why)
	h.why <- why
}

func localAddrPort(c *testkit.Conn) netip.AddrPort { return c.LocalAddr().(*net.TCPAddr).AddrPort() }

// A connection behind a proxy is closed by the address that the handler sees, or by the proxy's
// socket address.
func TestCloseConnsBehindProxy(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, loops int) {
		h := closeReasonHandler{Lines(MessageFunc(echoLine)), make(chan error, 10)}
		s := startBehindProxy(t, &Server{Model: model, Loops: loops, Handler: h})
		through := func(client string) *testkit.Conn {
			c := dial(t, s.addr)
			c.Send("PROXY TCP4 " + client + " 203.0.113.1 4444 80\r\n")
			c.Exchange("hello", "hello")
			return c
		}
		byTold, bySocket, stays := through("198.51.100.7"), through("198.51.100.8"), through("198.51.100.9")
		fresh := dial(t, s.addr) // no proxy has told anything of it
		waitFor(t, "not all are open", func() bool { return s.Stats().Open == 4 })
		proxy := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), 1)
		for _, nobody := range []netip.AddrPort{proxy, netip.MustParseAddrPort("198.51.100.7:4445")} {
			s.CloseConns(nobody)
		}
		for range 10 {
			byTold.Exchange("still there", "still there")
			bySocket.Exchange("still there", "still there")
		}
		for _, c := range []struct {
			conn *testkit.Conn
			at   netip.AddrPort
		}{
			{byTold, netip.MustParseAddrPort("[::ffff:198.51.100.7]:4444")},
			{bySocket, localAddrPort(bySocket)},
		} {
			expectNoError(t, s.CloseConns(c.at))
			if got := c.conn.ExpectClosed(); got != "" {
				t.Errorf("%v: it has got %q", c.at, got)
			}
			if why := <-h.why; why != ErrClosedByOperator {
				t.Errorf("%v: closed for %v, want %v", c.at, why, ErrClosedByOperator)
			}
		}
		s.CloseConns(localAddrPort(fresh))
		if got := fresh.ExpectClosed(); got != "" {
			t.Errorf("the one without a header has got %q", got)
		}
		stays.Exchange("still there", "still there")
	})
}

// A handler may close its own connection with CloseConns, on its loop.
func TestCloseConnsInHandler(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, loops int) {
		srv := &Server{Model: model, Loops: loops}
		srv.Handler = Lines(MessageFunc(func(c *Conn, line []byte) {
			expectNoError(t, srv.CloseConns(c.RemoteAddr().(*net.TCPAddr).AddrPort()))
		}))
		s := startServer(t, srv)
		c := dial(t, s.addr)
		c.Send("close me\n")
		c.ExpectClosed()
	})
}

func TestControlBeforeAndAfter(t *testing.T) {
	at := netip.MustParseAddrPort("192.0.2.1:80")
	var idle Server
	for _, err := range []error{idle.PauseAccepting(), idle.ResumeAccepting(), idle.CloseConns(at)} {
		if !errors.Is(err, ErrServerClosed) {
			t.Errorf("before the start: %v, want %v", err, ErrServerClosed)
		}
	}
	if addr := idle.ListenAddr(); addr != nil {
		t.Errorf("before the start it listens on %v", addr)
	}
	if err := idle.CloseConns(netip.AddrPort{}); !errors.Is(err, ErrBadConfig) {
		t.Errorf("no address: %v, want %v", err, ErrBadConfig)
	}
	forEachModel(t, func(t *testing.T, model string, loops int) {
		s := startServer(t, &Server{Model: model, Loops: loops})
		if addr := s.ListenAddr(); addr.String() != s.addr {
			t.Errorf("it listens on %v, want %s", addr, s.addr)
		}
		expectNoError(t, s.Drain())
		if err := s.waitResult(t); err != nil {
			t.Errorf("ListenAndServe after Drain: %v", err)
		}
		for _, err := range []error{s.PauseAccepting(), s.ResumeAccepting(), s.CloseConns(at)} {
			if !errors.Is(err, ErrServerClosed) {
				t.Errorf("after the end: %v, want %v", err, ErrServerClosed)
			}
		}
	})
}

// Stopping is called once while connections are still open, however the server is stopped and how
// often.
func TestStopping(t *testing.T) {
	background := context.Background()
	for name, end := range map[string]func(*started){
		"context":  func(s *started) { s.stop() },
		"Drain":    func(s *started) { s.Drain() },
		"Shutdown": func(s *started) { s.Shutdown(background) },
		"Close":    func(s *started) { s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			forEachModel(t, func(t *testing.T, model string, loops int) {
				open := make(chan int64, 10)
				srv := &Server{Model: model, Loops: loops}
				srv.Stopping = func() { open <- srv.Stats().Open }
				s := startServer(t, srv)
				dial(t, s.addr).Exchange("hello", "hello")
				end(s)
				_ = s.waitResult(t) // whether it was cut off is another matter
				s.Shutdown(background)
				s.Close()
				if n := len(open); n != 1 {
					t.Fatalf("called %d times, want once", n)
				}
				if n := <-open; n != 1 {
					t.Errorf("%d connections were open when it was called, want 1", n)
				}
			})
		})
	}
	idle := Server{Stopping: func() { t.Error("called before the start") }}
	idle.Close()
}
