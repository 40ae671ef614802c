package tcp

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad/internal/engine/enginetest"
	"github.com/myriad-go/myriad/internal/testkit"
)

// dialRecorder sends hello on dialed connections and records its calls.
type dialRecorder struct {
	Base
	events chan string
	failed func(Dial) // called in DialFailed instead, once
}

func newDialRecorder() *dialRecorder { return &dialRecorder{events: make(chan string, 10)} }

func (h *dialRecorder) Opened(c *Conn) {
	h.events <- fmt.Sprint("opened ", c.Value())
	c.WriteString("hello\n")
}

func (h *dialRecorder) Received(c *Conn, in []byte) int {
	h.events <- "received " + string(in)
	c.Close()
	return len(in)
}

func (h *dialRecorder) Closed(_ *Conn, why error) { h.events <- fmt.Sprint("closed ", why) }

func (h *dialRecorder) DialFailed(d Dial, err error) {
	if f := h.failed; f != nil {
		h.failed = nil
		f(d)
		return
	}
	h.events <- fmt.Sprintf("failed %s %v: %v", d.Addr, d.Value, err)
}

// expectEvents waits for events with the given prefixes.
func (h *dialRecorder) expectEvents(t *testing.T, events ...string) {
	t.Helper()
	for _, want := range events {
		if got := testkit.Receive(t, h.events, want); !strings.HasPrefix(got, want) {
			t.Errorf("got %q; expected %q", got, want)
		}
	}
}

// TestDial dials by address and by name, with TLS, and to a unix socket, and checks failures.
func TestDial(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, loops int) {
		server, client := identity()
		wrong := client.Clone()
		wrong.ServerName = "elsewhere.test"
		s := startServer(t, &Server{Model: model, Loops: loops})
		secure := startServer(t, &Server{Model: model, Loops: loops, TLSConfig: server})
		_, port, _ := net.SplitHostPort(s.addr)
		free, err := net.Listen("tcp", "127.0.0.1:0")
		requireNoError(t, err)
		free.Close()
		nobody := free.Addr().String()
		path := filepath.Join(t.TempDir(), "peer")
		h := newDialRecorder()
		h.failed = func(d Dial) {
			l, err := net.Listen("unix", path)
			expectNoError(t, err)
			go (&Server{Handler: Lines(MessageFunc(echoLine))}).Serve(t.Context(), l)
			expectNoError(t, s.Dial(d))
		}
		for _, c := range []struct {
			dial Dial
			want string // "opened", or the failure
		}{
			{Dial{Network: "unix", Addr: path, Value: 8}, "opened 8"},
			{Dial{Addr: s.addr, Value: 7}, "opened 7"},
			{Dial{Addr: "localhost:" + port}, "opened <nil>"},
			{Dial{Addr: secure.addr, TLSConfig: client}, "opened <nil>"},
			{Dial{Addr: nobody, Value: 7}, "failed " + nobody + " 7: " + syscall.ECONNREFUSED.Error()},
			{Dial{Addr: "host.invalid:1"}, "failed host.invalid:1 <nil>: lookup host.invalid"},
			{Dial{Addr: secure.addr, TLSConfig: wrong}, "failed " + secure.addr +
				" <nil>: tls: failed to verify certificate: x509: certificate is valid for example.com"},
		} {
			c.dial.Handler = h
			requireNoError(t, s.Dial(c.dial))
			h.expectEvents(t, c.want)
			if strings.HasPrefix(c.want, "opened") {
				h.expectEvents(t, "received hello\n", "closed <nil>")
			}
		}
	})
}

func TestRun(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, loops int) {
		echo := startServer(t, &Server{})
		ready := make(chan net.Addr, 1)
		s := &Server{Model: model, Loops: loops, Listening: func(a net.Addr) { ready <- a }}
		h := newDialRecorder()
		to := Dial{Addr: echo.addr, Handler: h}
		expectError(t, "Dial before the start", s.Dial(to), ErrServerClosed, "has not started; expected a call in Server.Listening")
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		expectEqual(t, "the address where it listens", <-ready, nil)
		requireNoError(t, s.Dial(to))
		h.expectEvents(t, "opened <nil>", "received hello\n", "closed <nil>")
		cancel()
		expectNoError(t, <-done)
		if err := s.Dial(to); !errors.Is(err, ErrServerClosed) || strings.Contains(err.Error(), "not started") {
			t.Errorf("Dial after the end: %v, want ErrServerClosed", err)
		}
	})
}

func TestDialBadConfig(t *testing.T) {
	s := startServer(t, &Server{})
	h := newDialRecorder()
	for want, d := range map[string]Dial{
		"Handler is nil":                      {Addr: s.addr},
		"expected host:port":                  {Addr: "host", Handler: h},
		"a port from 1":                       {Addr: "127.0.0.1:0", Handler: h},
		"expected a host":                     {Addr: ":80", Handler: h},
		"tcp or unix":                         {Network: "udp", Addr: s.addr, Handler: h},
		"Timeout is -1ns":                     {Addr: s.addr, Handler: h, Timeout: -1},
		"same family":                         {Addr: s.addr, Handler: h, Source: netip.IPv6Loopback()},
		"Dial.Handler: Blocking.Serve is nil": {Addr: s.addr, Handler: new(Blocking)},
	} {
		expectError(t, "Dial", s.Dial(d), ErrBadConfig, want)
	}
	if len(h.events) > 0 {
		t.Errorf("the handler heard %q", <-h.events)
	}
}

func TestEach(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, loops int) {
		s := startServer(t, &Server{Model: model, Loops: loops})
		const n, left = 700, 10 // more than a turn's
		enginetest.DialCrowd(t, s.addr, n-left)
		for range left {
			c := dial(t, s.addr)
			c.ExchangeLine("open", "open")
			c.Close()
		}
		waitFor(t, "not all have come and gone", func() bool { st := s.Stats(); return st.Accepted == n && st.Open == n-left })
		var seen sync.Map
		var calls atomic.Int64
		err := s.Each(context.Background(), func(c *Conn) {
			if _, again := seen.Swap(c.RemoteAddr().String(), true); again {
				t.Error("called twice for a connection")
			}
			if calls.Add(1) == 1 {
				panic("in Each") // of which only its connection hears
			}
		})
		if err != nil || calls.Load() != n-left {
			t.Errorf("%d calls, %v; want %d", calls.Load(), err, n-left)
		}
	})
}

// Each returns even if a connection with mail from it closes on a worker meanwhile, and the connection's successor in
// the same slot closes properly: the reservation of the first one was released.
func TestEachWhileClosing(t *testing.T) {
	t.Parallel() // mostly waits
	forEachModel(t, func(t *testing.T, model string, _ int) {
		quit := Lines(MessageFunc(func(c *Conn, line []byte) { c.Close() }))
		s := startServer(t, &Server{Model: model, Loops: 1, Workers: newPool(t, plainPoolConfig(4, 1024)), Handler: quit})
		for range 300 {
			c := dial(t, s.addr)
			c.Send("quit\n")
			c.ExpectEOF("") // it lingers, until we end
			done := make(chan error, 1)
			go func() { done <- s.Each(t.Context(), func(*Conn) {}) }()
			c.Close()
			requireNoError(t, testkit.Receive(t, done, "Each returns"))
		}
		s.waitOpen(t, 0)
	})
}

// relayTo returns a handler that relays connections to another server.
func relayTo(addr string, config *tls.Config) hooks {
	return hooks{opened: func(c *Conn) {
		c.Pause()
		if err := c.Dial(Dial{Addr: addr, TLSConfig: config, Handler: relayJoiner{client: c.Ref()}}); err != nil {
			c.CloseWith(err)
		}
	}}
}

type relayJoiner struct {
	Base
	client Ref
}

func (h relayJoiner) Opened(c *Conn) {
	if err := c.Relay(h.client); err != nil {
		c.CloseWith(err)
	}
}

type rawEcho struct{ Base }

func (rawEcho) Received(c *Conn, in []byte) int { n, _ := c.Write(in); return n }

// TestRelayTLS relays much data in both directions, with TLS on one side or both.
func TestRelayTLS(t *testing.T) {
	t.Parallel() // mostly waits
	server, client := identity()
	sent := make([]byte, 4<<20)
	rand.New(rand.NewSource(1)).Read(sent)
	forEachModel(t, func(t *testing.T, model string, loops int) {
		for _, target := range []struct{ server, client *tls.Config }{{nil, nil}, {server, client}} {
			to := startServer(t, &Server{Handler: rawEcho{}, TLSConfig: target.server}).addr
			s := startServer(t, &Server{Model: model, Loops: loops, TLSConfig: server, Handler: relayTo(to, target.client)})
			c := testkit.DialTLS(t, s.addr, client)
			go func() {
				c.Write(sent)
				c.Conn.(*tls.Conn).CloseWrite()
			}()
			if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, sent) {
				t.Errorf("target with TLS: %t: %d bytes have come back of %d, or others; %v", target.server != nil, len(got), len(sent), err)
			}
		}
	})
}
