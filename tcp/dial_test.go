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
	"syscall"
	"testing"
	"time"

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
// DialFailed can dial again with its argument.
func TestDial(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, loops int) {
		s := startServer(t, &Server{Model: model, Loops: loops})
		h := newDialRecorder()
		_, port, _ := net.SplitHostPort(s.addr)
		for _, addr := range []string{s.addr, "localhost:" + port} {
			requireNoError(t, s.Dial(Dial{Addr: addr, Handler: h, Value: 7}))
			h.expectEvents(t, "opened 7", "received hello\n", "closed <nil>")
		}
		free, err := net.Listen("tcp", "127.0.0.1:0")
		requireNoError(t, err)
		free.Close()
		requireNoError(t, s.Dial(Dial{Addr: free.Addr().String(), Handler: h, Value: 7}))
		h.expectEvents(t, "failed "+free.Addr().String()+" 7: "+syscall.ECONNREFUSED.Error())
		requireNoError(t, s.Dial(Dial{Addr: "host.invalid:1", Handler: h}))
		h.expectEvents(t, "failed host.invalid:1 <nil>: lookup host.invalid")

		path := filepath.Join(t.TempDir(), "peer")
		h.failed = func(d Dial) {
			l, err := net.Listen("unix", path)
			expectNoError(t, err)
			go (&Server{Handler: Lines(MessageFunc(echoLine))}).Serve(t.Context(), l)
			expectNoError(t, s.Dial(d))
		}
		requireNoError(t, s.Dial(Dial{Network: "unix", Addr: path, Handler: h, Value: 8}))
		h.expectEvents(t, "opened 8", "received hello\n", "closed <nil>")

		server, client := identity()
		s = startServer(t, &Server{Model: model, Loops: loops, TLSConfig: server})
		requireNoError(t, s.Dial(Dial{Addr: s.addr, Handler: h, TLSConfig: client}))
		h.expectEvents(t, "opened <nil>", "received hello\n", "closed <nil>")
		wrong := client.Clone()
		wrong.ServerName = "elsewhere.test"
		requireNoError(t, s.Dial(Dial{Addr: s.addr, Handler: h, TLSConfig: wrong}))
		h.expectEvents(t, "failed "+s.addr+" <nil>: tls: failed to verify certificate: x509: certificate is valid for example.com")
	})
}

// TestRun checks that a server can dial without listening.
func TestRun(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, loops int) {
		echo := startServer(t, &Server{})
		ready := make(chan net.Addr, 1)
		s := &Server{Model: model, Loops: loops, Listening: func(a net.Addr) { ready <- a }}
		h := newDialRecorder()
		err := s.Dial(Dial{Addr: echo.addr, Handler: h})
		if !errors.Is(err, ErrServerClosed) || !strings.Contains(err.Error(), "has not started yet; call this in Server.Listening") {
			t.Errorf("Dial before the start: %v, want ErrServerClosed that says so", err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		if a := <-ready; a != nil {
			t.Errorf("it listens at %v", a)
		}
		requireNoError(t, s.Dial(Dial{Addr: echo.addr, Handler: h}))
		h.expectEvents(t, "opened <nil>", "received hello\n", "closed <nil>")
		cancel()
		expectNoError(t, <-done)
		if err := s.Dial(Dial{Addr: echo.addr, Handler: h}); !errors.Is(err, ErrServerClosed) || strings.Contains(err.Error(), "not started") {
			t.Errorf("Dial after the end: %v, want ErrServerClosed", err)
		}
	})
}

func TestDialBadConfig(t *testing.T) {
	s := startServer(t, &Server{})
	h := newDialRecorder()
	for want, d := range map[string]Dial{
		"Handler is nil":     {Addr: s.addr},
		"expected host:port": {Addr: "host", Handler: h},
		"a port of 1":        {Addr: "127.0.0.1:0", Handler: h},
		"expected a host":    {Addr: ":80", Handler: h},
		"tcp or unix":        {Network: "udp", Addr: s.addr, Handler: h},
		"Timeout is -1ns":    {Addr: s.addr, Handler: h, Timeout: -1},
		"one family":         {Addr: s.addr, Handler: h, Source: netip.IPv6Loopback()},
	} {
		if err := s.Dial(d); !errors.Is(err, ErrBadConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("Dial(%+v): %v; expected %q", d, err, want)
		}
	}
	if len(h.events) > 0 {
		t.Errorf("the handler heard %q", <-h.events)
	}
}

// receiveRecorder is a handler that records its input.
type receiveRecorder struct {
	Base
	opened chan Ref
	got    chan string
}

func (h *receiveRecorder) Opened(c *Conn) { h.opened <- c.Ref() }

func (h *receiveRecorder) Received(_ *Conn, in []byte) int {
	h.got <- string(in)
	return len(in)
}

func (h *receiveRecorder) expectReceived(t *testing.T, want string) {
	t.Helper()
	if got := testkit.Receive(t, h.got, want); got != want {
		t.Errorf("received %q, want %q", got, want)
	}
}

// TestDo checks that Ref.Do is ordered with sent messages, that nothing is received while reading
// is paused but everything afterwards, and that a connection still receives after CloseWrite.
func TestDo(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, loops int) {
		h := &receiveRecorder{opened: make(chan Ref, 1), got: make(chan string, 10)}
		s := startServer(t, &Server{Model: model, Loops: loops, Handler: h})
		c := dial(t, s.addr)
		r := <-h.opened
		do := func(f func(*Conn)) {
			t.Helper()
			done := make(chan bool, 1)
			requireNoError(t, r.Do(func(c *Conn) { f(c); done <- true }))
			testkit.Receive(t, done, "Do")
		}
		r.Send([]byte("first, "))
		do(func(c *Conn) { c.WriteString("second, ") })
		r.Send([]byte("third\n"))
		c.Expect("first, second, third\n")
		do(func(c *Conn) { c.Pause() })
		c.Send("paused")
		do(func(c *Conn) {
			if !c.Paused() || len(h.got) > 0 {
				t.Errorf("paused: %v, and %d inputs have come", c.Paused(), len(h.got))
			}
		})
		do(func(c *Conn) { c.Resume() })
		h.expectReceived(t, "paused")
		do(func(c *Conn) {
			c.WriteString("last")
			c.CloseWrite()
			if _, err := c.WriteString("later"); !errors.Is(err, ErrClosed) {
				t.Errorf("a write after CloseWrite: %v, want ErrClosed", err)
			}
		})
		c.ExpectEOF("last")
		c.Send("after the end")
		h.expectReceived(t, "after the end")
		other := &receiveRecorder{got: make(chan string, 1)}
		do(func(c *Conn) {
			c.SetValue("value")
			c.SetHandler(other)
			if c.Value() != "value" || c.Server() != s.Server {
				t.Errorf("with another handler its value is %v and its server %p", c.Value(), c.Server())
			}
		})
		c.Send("to another")
		other.expectReceived(t, "to another")
		c.Close()
		waitFor(t, "Do does not fail on a closed connection", func() bool { return r.Do(func(*Conn) {}) == ErrClosed })
	})
}

// TestEach checks that Each calls its function once for each open connection.
func TestEach(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, loops int) {
		s := startServer(t, &Server{Model: model, Loops: loops})
		const n, left = 700, 10 // more than a turn's
		enginetest.DialCrowd(t, s.addr, n-left)
		for range left {
			c := dial(t, s.addr)
			c.Exchange("open", "open")
			c.Close()
		}
		waitFor(t, "not all have come and gone", func() bool { st := s.Stats(); return st.Accepted == n && st.Open == n-left })
		var mu sync.Mutex
		seen, calls := map[string]bool{}, 0
		err := s.Each(context.Background(), func(c *Conn) {
			mu.Lock()
			defer mu.Unlock()
			seen[c.RemoteAddr().String()] = true
			if calls++; calls == 1 {
				panic("in Each") // of which only its connection hears
			}
		})
		if err != nil || len(seen) != n-left || calls != n-left {
			t.Errorf("%d calls for %d connections, %v; want %d", calls, len(seen), err, n-left)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := s.Each(ctx, func(*Conn) {}); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("Each with a context that has ended: %v", err)
		}
		s.Close()
		if err := s.Each(context.Background(), func(*Conn) {}); !errors.Is(err, ErrServerClosed) {
			t.Errorf("Each after the end: %v, want ErrServerClosed", err)
		}
	})
}

// TestEachWhileConnectionsGo checks that Each returns while connections come and go.
func TestEachWhileConnectionsGo(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, loops int) {
		s := startServer(t, &Server{Model: model, Loops: loops})
		over := make(chan struct{})
		for range 2 {
			go func() {
				defer func() { over <- struct{}{} }()
				for range 10 {
					var conns []*testkit.Conn
					for range 50 {
						if nc, err := net.Dial("tcp", s.addr); err == nil {
							conns = append(conns, &testkit.Conn{Conn: nc})
						}
					}
					for _, c := range conns {
						c.Reset() // no TIME_WAIT
					}
				}
			}()
		}
		for ended := 0; ended < 2; {
			ctx, cancel := context.WithTimeout(t.Context(), testkit.Timeout)
			requireNoError(t, s.Each(ctx, func(*Conn) {}))
			cancel()
			select {
			case <-over:
				ended++
			default:
			}
		}
	})
}

// relayingHandler relays connections to another server.
type relayingHandler struct {
	Base
	to  string
	tls *tls.Config
}

func (h relayingHandler) Opened(c *Conn) {
	c.Pause()
	if err := c.Dial(Dial{Addr: h.to, TLSConfig: h.tls, Handler: relayJoiner{client: c.Ref()}}); err != nil {
		c.CloseWith(err)
	}
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
	server, client := identity()
	sent := make([]byte, 4<<20)
	rand.New(rand.NewSource(1)).Read(sent)
	forEachModel(t, func(t *testing.T, model string, loops int) {
		for name, to := range map[string]relayingHandler{"clear": {}, "TLS": {tls: client}} {
			target := &Server{Handler: rawEcho{}}
			if to.tls != nil {
				target.TLSConfig = server
			}
			to.to = startServer(t, target).addr
			s := startServer(t, &Server{Model: model, Loops: loops, TLSConfig: server, Handler: to})
			c := testkit.DialTLS(t, s.addr, client)
			go func() {
				c.Write(sent)
				c.Conn.(*tls.Conn).CloseWrite()
			}()
			if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, sent) {
				t.Errorf("%s: %d bytes have come back of %d, or others; %v", name, len(got), len(sent), err)
			}
		}
	})
}

// retainer retains and releases the connection in each call.
type retainer struct{ Base }

func (retainer) Received(c *Conn, in []byte) int {
	c.Retain()
	c.Release()
	return len(in)
}

// TestDrainOfRetained checks that a drain ends although a peer keeps sending and the handler
// retains and releases.
func TestDrainOfRetained(t *testing.T) {
	for _, model := range Models() {
		t.Run(model, func(t *testing.T) {
			srv := &Server{Model: model, Handler: retainer{}, Socket: Socket{ReceiveBuffer: 4 << 20}}
			srv.Limits.ShutdownTimeout = 500 * time.Millisecond
			s := startServer(t, srv)
			c := dial(t, s.addr)
			flooded := make(chan struct{})
			go func() {
				defer close(flooded)
				for p := make([]byte, 1<<20); ; {
					if _, err := c.Write(p); err != nil {
						return
					}
				}
			}()
			waitFor(t, "nothing comes", func() bool { return s.Stats().BytesIn > 8<<20 })
			s.stop()
			_ = s.waitResult(t) // an error, where the drain took too long
			c.Close()
			<-flooded
		})
	}
}
