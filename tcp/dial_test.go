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

// caller says hello to whom it has called, and tells what came of it.
type caller struct {
	Base
	events chan string
	failed func(Dial) // called in DialFailed instead, once
}

func newCaller() *caller { return &caller{events: make(chan string, 10)} }

func (h *caller) Opened(c *Conn) {
	h.events <- fmt.Sprint("opened ", c.Value())
	c.WriteString("hello\n")
}

func (h *caller) Received(c *Conn, in []byte) int {
	h.events <- "received " + string(in)
	c.Close()
	return len(in)
}

func (h *caller) Closed(_ *Conn, why error) { h.events <- fmt.Sprint("closed ", why) }

func (h *caller) DialFailed(d Dial, err error) {
	if f := h.failed; f != nil {
		h.failed = nil
		f(d)
		return
	}
	h.events <- fmt.Sprintf("failed %s %v: %v", d.Addr, d.Value, err)
}

// wants waits for what a caller tells: the beginnings of its events.
func (h *caller) wants(t *testing.T, events ...string) {
	t.Helper()
	for _, want := range events {
		if got := testkit.Receive(t, h.events, want); !strings.HasPrefix(got, want) {
			t.Errorf("got %q; expected %q", got, want)
		}
	}
}

// TestDial dials by address and by name, with TLS and to a unix socket, and tells what fails. DialFailed has
// what it takes to dial once more.
func TestDial(t *testing.T) {
	onModels(t, func(t *testing.T, model string, loops int) {
		s := start(t, &Server{Model: model, Loops: loops})
		h := newCaller()
		_, port, _ := net.SplitHostPort(s.addr)
		for _, addr := range []string{s.addr, "localhost:" + port} {
			must(t, s.Dial(Dial{Addr: addr, Handler: h, Value: 7}))
			h.wants(t, "opened 7", "received hello\n", "closed <nil>")
		}
		free, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		free.Close()
		must(t, s.Dial(Dial{Addr: free.Addr().String(), Handler: h, Value: 7}))
		h.wants(t, "failed "+free.Addr().String()+" 7: "+syscall.ECONNREFUSED.Error())
		must(t, s.Dial(Dial{Addr: "host.invalid:1", Handler: h}))
		h.wants(t, "failed host.invalid:1 <nil>: lookup host.invalid")

		path := filepath.Join(t.TempDir(), "peer")
		h.failed = func(d Dial) {
			l, err := net.Listen("unix", path)
			ok(t, err)
			go (&Server{Handler: Lines(MessageFunc(echoLine))}).Serve(t.Context(), l)
			ok(t, s.Dial(d))
		}
		must(t, s.Dial(Dial{Network: "unix", Addr: path, Handler: h, Value: 8}))
		h.wants(t, "opened 8", "received hello\n", "closed <nil>")

		server, client := identity()
		s = start(t, &Server{Model: model, Loops: loops, TLSConfig: server})
		must(t, s.Dial(Dial{Addr: s.addr, Handler: h, TLSConfig: client}))
		h.wants(t, "opened <nil>", "received hello\n", "closed <nil>")
		wrong := client.Clone()
		wrong.ServerName = "elsewhere.test"
		must(t, s.Dial(Dial{Addr: s.addr, Handler: h, TLSConfig: wrong}))
		h.wants(t, "failed "+s.addr+" <nil>: tls: failed to verify certificate: x509: certificate is valid for example.com")
	})
}

// TestRun dials and does not listen.
func TestRun(t *testing.T) {
	onModels(t, func(t *testing.T, model string, loops int) {
		echo := start(t, &Server{})
		ready := make(chan net.Addr, 1)
		s := &Server{Model: model, Loops: loops, Listening: func(a net.Addr) { ready <- a }}
		h := newCaller()
		err := s.Dial(Dial{Addr: echo.addr, Handler: h})
		if !errors.Is(err, ErrServerClosed) || !strings.Contains(err.Error(), "has not started yet; expected the call when Server.Listening") {
			t.Errorf("Dial before the start: %v, want ErrServerClosed that says so", err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		if a := <-ready; a != nil {
			t.Errorf("it listens at %v", a)
		}
		must(t, s.Dial(Dial{Addr: echo.addr, Handler: h}))
		h.wants(t, "opened <nil>", "received hello\n", "closed <nil>")
		cancel()
		ok(t, <-done)
		if err := s.Dial(Dial{Addr: echo.addr, Handler: h}); !errors.Is(err, ErrServerClosed) || strings.Contains(err.Error(), "not started") {
			t.Errorf("Dial after the end: %v, want ErrServerClosed", err)
		}
	})
}

func TestDialBadConfig(t *testing.T) {
	s := start(t, &Server{})
	h := newCaller()
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

// ordered is a handler that tells what it receives.
type ordered struct {
	Base
	opened chan Ref
	got    chan string
}

func (h *ordered) Opened(c *Conn) { h.opened <- c.Ref() }

func (h *ordered) Received(_ *Conn, in []byte) int {
	h.got <- string(in)
	return len(in)
}

func (h *ordered) wants(t *testing.T, want string) {
	t.Helper()
	if got := testkit.Receive(t, h.got, want); got != want {
		t.Errorf("received %q, want %q", got, want)
	}
}

// TestDo has what is done by Ref.Do come in order with what was sent; nothing is received while
// reading is paused, and all of it afterwards; and a connection whose direction has ended receives on.
func TestDo(t *testing.T) {
	onModels(t, func(t *testing.T, model string, loops int) {
		h := &ordered{opened: make(chan Ref, 1), got: make(chan string, 10)}
		s := start(t, &Server{Model: model, Loops: loops, Handler: h})
		c := dial(t, s.addr)
		r := <-h.opened
		do := func(f func(*Conn)) {
			t.Helper()
			done := make(chan bool, 1)
			must(t, r.Do(func(c *Conn) { f(c); done <- true }))
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
		h.wants(t, "paused")
		do(func(c *Conn) {
			c.WriteString("last")
			c.CloseWrite()
			if _, err := c.WriteString("later"); !errors.Is(err, ErrClosed) {
				t.Errorf("a write after CloseWrite: %v, want ErrClosed", err)
			}
		})
		c.ExpectEOF("last")
		c.Send("after the end")
		h.wants(t, "after the end")
		other := &ordered{got: make(chan string, 1)}
		do(func(c *Conn) {
			c.SetValue("value")
			c.SetHandler(other)
			if c.Value() != "value" || c.Server() != s.Server {
				t.Errorf("with another handler its value is %v and its server %p", c.Value(), c.Server())
			}
		})
		c.Send("to another")
		other.wants(t, "to another")
		c.Close()
		waitFor(t, "Do does not fail on a closed connection", func() bool { return r.Do(func(*Conn) {}) == ErrClosed })
	})
}

// TestEach calls its function once for every connection, and for none that has closed.
func TestEach(t *testing.T) {
	onModels(t, func(t *testing.T, model string, loops int) {
		s := start(t, &Server{Model: model, Loops: loops})
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

// TestEachWhileConnectionsGo has Each come to its end while connections come and go.
func TestEachWhileConnectionsGo(t *testing.T) {
	onModels(t, func(t *testing.T, model string, loops int) {
		s := start(t, &Server{Model: model, Loops: loops})
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
			must(t, s.Each(ctx, func(*Conn) {}))
			cancel()
			select {
			case <-over:
				ended++
			default:
			}
		}
	})
}

// forward relays to another server.
type forward struct {
	Base
	to  string
	tls *tls.Config
}

func (h forward) Opened(c *Conn) {
	c.Pause()
	if err := c.Dial(Dial{Addr: h.to, TLSConfig: h.tls, Handler: joiner{client: c.Ref()}}); err != nil {
		c.CloseWith(err)
	}
}

type joiner struct {
	Base
	client Ref
}

func (h joiner) Opened(c *Conn) {
	if err := c.Relay(h.client); err != nil {
		c.CloseWith(err)
	}
}

type rawEcho struct{ Base }

func (rawEcho) Received(c *Conn, in []byte) int { n, _ := c.Write(in); return n }

// TestRelayTLS has a relay decrypt on one side, and encrypt on the other or not, much in both directions.
func TestRelayTLS(t *testing.T) {
	server, client := identity()
	sent := make([]byte, 4<<20)
	rand.New(rand.NewSource(1)).Read(sent)
	onModels(t, func(t *testing.T, model string, loops int) {
		for name, to := range map[string]forward{"clear": {}, "TLS": {tls: client}} {
			target := &Server{Handler: rawEcho{}}
			if to.tls != nil {
				target.TLSConfig = server
			}
			to.to = start(t, target).addr
			s := start(t, &Server{Model: model, Loops: loops, TLSConfig: server, Handler: to})
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

// retainer owes something for a moment in each call.
type retainer struct{ Base }

func (retainer) Received(c *Conn, in []byte) int {
	c.Retain()
	c.Release()
	return len(in)
}

// TestDrainOfRetained ends a drain of a peer that goes on sending, with a handler that retains and releases.
func TestDrainOfRetained(t *testing.T) {
	for _, model := range Models() {
		t.Run(model, func(t *testing.T) {
			srv := &Server{Model: model, Handler: retainer{}, Socket: Socket{ReceiveBuffer: 4 << 20}}
			srv.Limits.ShutdownTimeout = 500 * time.Millisecond
			s := start(t, srv)
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
			_ = s.result(t) // an error, where the drain took too long
			c.Close()
			<-flooded
		})
	}
}
