package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine/enginetest"
)

// caller says hello to whom it has called, and tells what came of it.
type caller struct {
	Base
	events chan string
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
	h.events <- fmt.Sprintf("failed %s %v: %v", d.Addr, d.Value, err)
}

// wants waits for what a caller tells.
func (h *caller) wants(t *testing.T, events ...string) {
	t.Helper()
	for _, want := range events {
		select {
		case got := <-h.events:
			if got != want {
				t.Errorf("got %q; expected %q", got, want)
			}
		case <-time.After(patience):
			t.Fatalf("nothing came; expected %q", want)
		}
	}
}

func TestDial(t *testing.T) {
	onModels(t, func(t *testing.T, model string, loops int) {
		s := start(t, &Server{Model: model, Loops: loops})
		_, port, _ := net.SplitHostPort(s.addr)
		for _, addr := range []string{s.addr, "localhost:" + port} {
			h := newCaller()
			must(t, s.Dial(Dial{Addr: addr, Handler: h, Value: 7}))
			h.wants(t, "opened 7", "received hello\n", "closed <nil>")
		}
		free, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		free.Close()
		h := newCaller()
		must(t, s.Dial(Dial{Addr: free.Addr().String(), Handler: h, Value: 7}))
		h.wants(t, "failed "+free.Addr().String()+" 7: "+syscall.ECONNREFUSED.Error())
		must(t, s.Dial(Dial{Addr: "host.invalid:1", Handler: h}))
		if got := <-h.events; !strings.HasPrefix(got, "failed host.invalid:1 <nil>: lookup host.invalid") {
			t.Errorf("a name that does not exist: %q", got)
		}
	})
}

func TestDialTLS(t *testing.T) {
	onModels(t, func(t *testing.T, model string, loops int) {
		server, client := tlsConfigs(t)
		s := start(t, &Server{Model: model, Loops: loops, TLSConfig: server})
		h := newCaller()
		must(t, s.Dial(Dial{Addr: s.addr, Handler: h, TLSConfig: client}))
		h.wants(t, "opened <nil>", "received hello\n", "closed <nil>")
		wrong := client.Clone()
		wrong.ServerName = "elsewhere.example"
		must(t, s.Dial(Dial{Addr: s.addr, Handler: h, TLSConfig: wrong}))
		if got := <-h.events; !strings.Contains(got, "elsewhere.example") || !strings.HasPrefix(got, "failed "+s.addr) {
			t.Errorf("a wrong certificate: %q", got)
		}
	})
}

// redialer is a handler that dials once more when that has failed.
type redialer struct {
	*caller
	s     *started
	peers func() // makes the peer ready
}

func (h redialer) DialFailed(d Dial, _ error) {
	h.peers()
	if err := h.s.Dial(d); err != nil {
		h.events <- err.Error()
	}
}

// DialFailed has what it takes to dial once more.
func TestDialAgain(t *testing.T) {
	onModels(t, func(t *testing.T, model string, loops int) {
		s := start(t, &Server{Model: model, Loops: loops})
		path := filepath.Join(t.TempDir(), "peer")
		h := redialer{newCaller(), s, func() {
			l, err := net.Listen("unix", path)
			must(t, err)
			go (&Server{Handler: Lines(MessageFunc(echoLine))}).Serve(t.Context(), l)
		}}
		must(t, s.Dial(Dial{Network: "unix", Addr: path, Handler: h, Value: 8}))
		h.wants(t, "opened 8", "received hello\n", "closed <nil>")
	})
}

// Run dials and does not listen.
func TestRun(t *testing.T) {
	onModels(t, func(t *testing.T, model string, loops int) {
		echo := start(t, &Server{})
		ready := make(chan net.Addr, 1)
		s := &Server{Model: model, Loops: loops, Listening: func(a net.Addr) { ready <- a }}
		if err := s.Dial(Dial{Addr: echo.addr, Handler: newCaller()}); !errors.Is(err, ErrServerClosed) || !strings.Contains(err.Error(), "has not started yet; expected the call when Server.Listening") {
			t.Errorf("Dial before the start: %v, want ErrServerClosed that says so", err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		if a := <-ready; a != nil {
			t.Errorf("it listens at %v", a)
		}
		h := newCaller()
		must(t, s.Dial(Dial{Addr: echo.addr, Handler: h}))
		h.wants(t, "opened <nil>", "received hello\n", "closed <nil>")
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run returned %v, want nil", err)
		}
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

// ordered is a handler whose test sends functions to do.
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

// What is done by Ref.Do comes in order with what was sent; nothing is received while
// reading is paused, and all of it afterwards; and a connection whose direction has
// ended receives on.
func TestDo(t *testing.T) {
	onModels(t, func(t *testing.T, model string, loops int) {
		h := &ordered{opened: make(chan Ref, 1), got: make(chan string, 10)}
		s := start(t, &Server{Model: model, Loops: loops, Handler: h})
		c := dial(t, s.addr).(*net.TCPConn)
		c.SetDeadline(time.Now().Add(patience))
		r := <-h.opened
		do := func(f func(*Conn)) {
			t.Helper()
			var done sync.WaitGroup
			done.Add(1)
			if err := r.Do(func(c *Conn) { defer done.Done(); f(c) }); err != nil {
				t.Fatal(err)
			}
			done.Wait()
		}
		r.Send([]byte("first, "))
		do(func(c *Conn) { c.WriteString("second, ") })
		r.Send([]byte("third\n"))
		want := "first, second, third\n"
		got := make([]byte, len(want))
		if _, err := io.ReadFull(c, got); string(got) != want {
			t.Fatalf("read %q, %v; want %q", got, err, want)
		}
		do(func(c *Conn) { c.Pause() })
		io.WriteString(c, "paused")
		do(func(c *Conn) {
			if !c.Paused() {
				t.Error("it is not paused")
			}
		})
		if len(h.got) > 0 {
			t.Errorf("received %q while paused", <-h.got)
		}
		do(func(c *Conn) { c.Resume() })
		if got := <-h.got; got != "paused" {
			t.Errorf("received %q, want %q", got, "paused")
		}
		do(func(c *Conn) {
			c.WriteString("last")
			c.CloseWrite()
			if _, err := c.WriteString("later"); !errors.Is(err, ErrClosed) {
				t.Errorf("a write after CloseWrite: %v, want ErrClosed", err)
			}
		})
		if rest, err := io.ReadAll(c); string(rest) != "last" {
			t.Errorf("read %q, %v; want %q", rest, err, "last")
		}
		io.WriteString(c, "after the end")
		if got := <-h.got; got != "after the end" {
			t.Errorf("received %q, want %q", got, "after the end")
		}
		other := &ordered{got: make(chan string, 1)}
		do(func(c *Conn) {
			c.SetValue("value")
			c.SetHandler(other)
			if c.Value() != "value" || c.Server() != s.Server {
				t.Errorf("with another handler its value is %v and its server %p", c.Value(), c.Server())
			}
		})
		io.WriteString(c, "to another")
		if got := <-other.got; got != "to another" {
			t.Errorf("the other handler received %q", got)
		}
		c.Close()
		eventually(t, func() bool { return r.Do(func(*Conn) {}) == ErrClosed }, func() string { return "Do does not fail on a closed connection" })
	})
}

// tlsConfigs are those of a server and of a client that trusts it.
func tlsConfigs(t *testing.T) (server, client *tls.Config) {
	https := httptest.NewTLSServer(nil) // whose certificate is at hand
	t.Cleanup(https.Close)
	client = https.Client().Transport.(*http.Transport).TLSClientConfig
	return &tls.Config{Certificates: https.TLS.Certificates}, &tls.Config{RootCAs: client.RootCAs}
}

// Each is called once for every connection, also for those that a worker has, and for
// none that has closed.
func TestEach(t *testing.T) {
	onModels(t, func(t *testing.T, model string, loops int) {
		s := start(t, &Server{Model: model, Loops: loops})
		const n = 700 // more than a turn's
		var held []net.Conn
		enginetest.Crowd(t, s.addr, n-10)
		for range 10 {
			held = append(held, dial(t, s.addr))
		}
		for _, c := range held {
			ask(t, c, "open")
		}
		eventually(t, func() bool { return s.Stats().Open == n }, func() string { return fmt.Sprintf("%+v", s.Stats()) })
		for _, c := range held {
			c.Close()
		}
		eventually(t, func() bool { return s.Stats().Open == n-10 }, func() string { return fmt.Sprintf("%+v", s.Stats()) })
		var mu sync.Mutex
		seen := map[string]int{}
		err := s.Each(context.Background(), func(c *Conn) {
			mu.Lock()
			defer mu.Unlock()
			seen[c.RemoteAddr().String()]++
			if len(seen) == 1 {
				panic("in Each") // of which only its connection hears
			}
		})
		if err != nil || len(seen) != n-10 {
			t.Errorf("%d connections were seen, %v; want %d", len(seen), err, n-10)
		}
		for addr, times := range seen {
			if times != 1 {
				t.Errorf("%s was seen %d times", addr, times)
			}
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

// A relay decrypts on one side and encrypts on the other.
func TestRelayTLS(t *testing.T) {
	onModels(t, func(t *testing.T, model string, loops int) {
		server, client := tlsConfigs(t)
		up := start(t, &Server{TLSConfig: server})
		s := start(t, &Server{Model: model, Loops: loops, TLSConfig: server, Handler: forward{to: up.addr, tls: client}})
		c := tls.Client(dial(t, s.addr), &tls.Config{RootCAs: client.RootCAs, ServerName: "127.0.0.1"})
		line := strings.Repeat("x", 30_000)
		for range 20 {
			ask(t, c, line)
		}
		c.CloseWrite()
		if rest, err := io.ReadAll(c); err != nil || len(rest) > 0 {
			t.Errorf("after the end: %q, %v", rest, err)
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
	if err := c.Dial(Dial{Addr: h.to, TLSConfig: h.tls, Handler: join{client: c.Ref()}}); err != nil {
		c.CloseWith(err)
	}
}

type join struct {
	Base
	client Ref
}

func (h join) Opened(c *Conn) {
	if err := c.Relay(h.client); err != nil {
		c.CloseWith(err)
	}
}

// retainer owes something for a moment in each call.
type retainer struct{ Base }

func (retainer) Received(c *Conn, in []byte) int {
	c.Retain()
	c.Release()
	return len(in)
}

// A drain of a peer that goes on sending, with a handler that retains and releases.
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
			eventually(t, func() bool { return s.Stats().BytesIn > 8<<20 }, func() string { return "nothing comes" })
			s.stop()
			select { // with an error, where the drain took too long
			case <-s.err:
			case <-time.After(patience):
				t.Error("the server does not end")
			}
			c.Close()
			<-flooded
		})
	}
}

// Each comes to its end while connections come and go.
func TestEachWhileConnectionsGo(t *testing.T) {
	for _, model := range Models() {
		t.Run(model, func(t *testing.T) {
			s := start(t, &Server{Model: model})
			stop := make(chan struct{})
			var going sync.WaitGroup
			for range 2 {
				going.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						var conns []net.Conn
						for range 50 {
							if c, err := net.Dial("tcp", s.addr); err == nil {
								c.(*net.TCPConn).SetLinger(0) // no TIME_WAIT
								conns = append(conns, c)
							}
						}
						for _, c := range conns {
							c.Close()
						}
					}
				})
			}
			for began := time.Now(); time.Since(began) < 300*time.Millisecond && !t.Failed(); {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				ok(t, s.Each(ctx, func(*Conn) {}))
				cancel()
			}
			close(stop)
			going.Wait()
		})
	}
}
