package myriad

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
)

// wantPaused waits until Stats has it.
func (s *started) wantPaused(t *testing.T, want bool) {
	t.Helper()
	eventually(t, func() bool { return s.Stats().AcceptingPaused == want }, func() string {
		return fmt.Sprintf("AcceptingPaused is %v, want %v", !want, want)
	})
}

func TestPauseAccepting(t *testing.T) {
	onModels(t, func(t *testing.T, model string, loops int) {
		s := start(t, &Server{Model: model, Loops: loops})
		c := dial(t, s.addr)
		ask(t, c, "hello")
		if err := s.PauseAccepting(); err != nil {
			t.Error(err)
		}
		s.wantPaused(t, true)
		late := dial(t, s.addr)
		for range 10 {
			ask(t, c, "meanwhile")
		}
		if open := s.Stats().Open; open != 1 {
			t.Errorf("%d connections are open, want the first alone", open)
		}
		if err := s.ResumeAccepting(); err != nil {
			t.Error(err)
		}
		ask(t, late, "let in")
		s.wantPaused(t, false)
		s.PauseAccepting()
		s.wantPaused(t, true)
		s.stop()
		if err := s.result(t); err != nil {
			t.Errorf("the end while accepting is paused: %v", err)
		}
	})
}

// closer tells why connections have closed.
type closer struct {
	Handler
	why chan error
}

func (h closer) Closed(c *Conn, why error) {
	h.Handler.Closed(c, why)
	h.why <- why
}

func remoteOf(c net.Conn) netip.AddrPort { return c.LocalAddr().(*net.TCPAddr).AddrPort() }

func TestCloseConns(t *testing.T) {
	onModels(t, func(t *testing.T, model string, loops int) {
		h := closer{Lines(MessageFunc(echoLine)), make(chan error, 10)}
		s := start(t, &Server{Model: model, Loops: loops, Handler: h})
		stays, goes := dial(t, s.addr), dial(t, s.addr)
		ask(t, stays, "hello")
		ask(t, goes, "hello")
		if err := s.CloseConns(remoteOf(goes)); err != nil {
			t.Error(err)
		}
		if got := ended(t, goes); got != "" {
			t.Errorf("it has got %q", got)
		}
		if why := <-h.why; why != ErrClosedByOperator {
			t.Errorf("closed for %v, want %v", why, ErrClosedByOperator)
		}
		eventually(t, func() bool { return s.Stats().Closed.Operator == 1 }, func() string {
			return fmt.Sprintf("closed are %+v, want one by the operator", s.Stats().Closed)
		})
		ask(t, stays, "still there")
	})
}

// Behind a proxy a connection goes by the address that the handler sees, and by that of the
// proxy's socket as well.
func TestCloseConnsBehindProxy(t *testing.T) {
	onModels(t, func(t *testing.T, model string, loops int) {
		h := closer{Lines(MessageFunc(echoLine)), make(chan error, 10)}
		s := behindProxy(t, &Server{Model: model, Loops: loops, Handler: h})
		through := func(client string) net.Conn {
			c := dial(t, s.addr)
			io.WriteString(c, "PROXY TCP4 "+client+" 203.0.113.1 4444 80\r\n")
			ask(t, c, "hello")
			return c
		}
		byTold, bySocket, stays := through("198.51.100.7"), through("198.51.100.8"), through("198.51.100.9")
		fresh := dial(t, s.addr) // no proxy has told anything of it
		eventually(t, func() bool { return s.Stats().Open == 4 }, func() string { return fmt.Sprintf("%+v", s.Stats()) })
		proxy := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), 1)
		for _, nobody := range []netip.AddrPort{proxy, netip.MustParseAddrPort("198.51.100.7:4445")} {
			s.CloseConns(nobody)
		}
		for range 10 {
			ask(t, byTold, "still there")
			ask(t, bySocket, "still there")
		}
		for _, c := range []struct {
			conn net.Conn
			at   netip.AddrPort
		}{
			{byTold, netip.MustParseAddrPort("[::ffff:198.51.100.7]:4444")},
			{bySocket, remoteOf(bySocket)},
		} {
			if err := s.CloseConns(c.at); err != nil {
				t.Error(err)
			}
			if got := ended(t, c.conn); got != "" {
				t.Errorf("%v: it has got %q", c.at, got)
			}
			if why := <-h.why; why != ErrClosedByOperator {
				t.Errorf("%v: closed for %v, want %v", c.at, why, ErrClosedByOperator)
			}
		}
		s.CloseConns(remoteOf(fresh))
		if got := ended(t, fresh); got != "" {
			t.Errorf("the one without a header has got %q", got)
		}
		ask(t, stays, "still there")
	})
}

// A handler may close its own connection so, on its loop.
func TestCloseConnsInHandler(t *testing.T) {
	onModels(t, func(t *testing.T, model string, loops int) {
		srv := &Server{Model: model, Loops: loops}
		var answer atomic.Value
		srv.Handler = Lines(MessageFunc(func(c *Conn, line []byte) {
			if err := srv.CloseConns(c.RemoteAddr().(*net.TCPAddr).AddrPort()); err != nil {
				answer.Store(err)
			}
		}))
		s := start(t, srv)
		c := dial(t, s.addr)
		io.WriteString(c, "close me\n")
		ended(t, c)
		if err := answer.Load(); err != nil {
			t.Error(err)
		}
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
	onModels(t, func(t *testing.T, model string, loops int) {
		s := start(t, &Server{Model: model, Loops: loops})
		if addr := s.ListenAddr(); addr.String() != s.addr {
			t.Errorf("it listens on %v, want %s", addr, s.addr)
		}
		if err := s.Drain(); err != nil {
			t.Errorf("Drain: %v", err)
		}
		if err := s.result(t); err != nil {
			t.Errorf("ListenAndServe after Drain: %v", err)
		}
		for _, err := range []error{s.PauseAccepting(), s.ResumeAccepting(), s.CloseConns(at)} {
			if !errors.Is(err, ErrServerClosed) {
				t.Errorf("after the end: %v, want %v", err, ErrServerClosed)
			}
		}
	})
}

// Drain gives connections Limits.ShutdownTimeout.
func TestDrainIsBounded(t *testing.T) {
	onModels(t, func(t *testing.T, model string, loops int) {
		s := start(t, &Server{Model: model, Loops: loops, Limits: Limits{ShutdownTimeout: 1}})
		c := dial(t, s.addr)
		ask(t, c, "hello")
		io.WriteString(c, "half a mess")
		eventually(t, func() bool { return s.Stats().BytesIn > 6+10 }, func() string { return "nothing was received" })
		if err := s.Drain(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Drain: %v, want it to be cut off", err)
		}
	})
}

// Stopping is called once, whoever tells the server to end and how often, while
// connections are still open.
func TestStopping(t *testing.T) {
	background := context.Background()
	for name, end := range map[string]func(*started){
		"context":  func(s *started) { s.stop() },
		"Drain":    func(s *started) { s.Drain() },
		"Shutdown": func(s *started) { s.Shutdown(background) },
		"Close":    func(s *started) { s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			onModels(t, func(t *testing.T, model string, loops int) {
				open := make(chan int64, 10)
				srv := &Server{Model: model, Loops: loops}
				srv.Stopping = func() { open <- srv.Stats().Open }
				s := start(t, srv)
				ask(t, dial(t, s.addr), "hello")
				end(s)
				_ = s.result(t) // whether it was cut off is another matter
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
