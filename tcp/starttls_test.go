package tcp

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// identity is a certificate for example.com, and a client configuration that trusts it.
var identity = sync.OnceValues(func() (*tls.Config, *tls.Config) {
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	return &tls.Config{Certificates: s.TLS.Certificates}, &tls.Config{RootCAs: roots, ServerName: "example.com"}
})

// startTLSHandler starts TLS at the line STARTTLS and echoes other lines.
type startTLSHandler struct {
	refs   chan Ref
	closed chan error
}

func newStartTLSHandler() *startTLSHandler {
	return &startTLSHandler{make(chan Ref, 100), make(chan error, 100)}
}

func (h *startTLSHandler) Opened(c *Conn) {}

func (h *startTLSHandler) Message(c *Conn, line []byte) {
	if string(line) != "STARTTLS" {
		echoLine(c, line)
		return
	}
	cfg, _ := identity()
	c.WriteString("220 go\n")
	if err := c.StartTLS(cfg); err != nil {
		c.CloseWith(err)
		return
	}
	if _, err := c.WriteString("too early"); !errors.Is(err, ErrBadUse) {
		c.CloseWith(fmt.Errorf("Write before the handshake: %w", err))
	}
	if err := c.StartTLS(cfg); !errors.Is(err, ErrBadUse) {
		c.CloseWith(fmt.Errorf("StartTLS twice: %w", err))
	}
	h.refs <- c.Ref()
}

func (h *startTLSHandler) Secured(c *Conn) { fmt.Fprintf(c, "secured %v\n", c.TLS() != nil) }

func (h *startTLSHandler) Closed(_ *Conn, why error) { h.closed <- why }

// requestTLS asks for TLS and waits for the answer.
func (h *startTLSHandler) requestTLS(t *testing.T, addr string) *testkit.Conn {
	t.Helper()
	c := dial(t, addr)
	c.Exchange("in clear", "in clear")
	io.WriteString(c, "STARTTLS\n")
	c.Expect("220 go\n")
	return c
}

func TestStartTLS(t *testing.T) {
	forEachSetup(t, func(t *testing.T, srv *Server) {
		h := newStartTLSHandler()
		srv.Handler = Lines(h)
		s := startServer(t, srv)
		_, client := identity()
		const conns = 10
		var all sync.WaitGroup
		for range conns {
			c := h.requestTLS(t, s.addr)
			ref := <-h.refs
			all.Go(func() {
				if err := ref.Send([]byte("posted\n")); err != nil { // which waits
					t.Errorf("Send: %v", err)
				}
				done := make(chan bool, 1)
				expectNoError(t, ref.Do(func(c *Conn) { done <- c.TLS() != nil }))
				tc := tls.Client(c, client)
				r := bufio.NewReader(tc)
				large := strings.Repeat("x", 50_000) + "\n"
				sent := make(chan struct{})
				go func() {
					defer close(sent)
					io.WriteString(tc, large)
				}()
				for _, want := range []string{"secured true\n", "posted\n", large} {
					if got, err := r.ReadString('\n'); got != want || err != nil {
						t.Errorf("got %d bytes, %v; want %.20q", len(got), err, want)
						return
					}
				}
				if !<-done {
					t.Error("Do was called before the handshake was over")
				}
				<-sent // Close would interrupt the write, without close_notify
				tc.Close()
			})
		}
		all.Wait()
		for range conns {
			if why := <-h.closed; why != io.EOF {
				t.Errorf("Closed(%v); want io.EOF", why)
			}
		}
		waitFor(t, "connections are open", func() bool { return s.Stats().Open == 0 })
		if n := s.Stats(); n.Greeting != 0 || n.Accepted != conns || n.Refused.Total() != 0 {
			t.Errorf("%d greet, %d accepted, refused %+v; want 0, %d, none", n.Greeting, n.Accepted, n.Refused, conns)
		}
	})
}

// Unencrypted input after the command is not treated as encrypted: CVE-2011-0411.
func TestStartTLSInjected(t *testing.T) {
	forEachSetup(t, func(t *testing.T, srv *Server) {
		h := newStartTLSHandler()
		srv.Handler = Lines(h)
		s := startServer(t, srv)
		for _, behind := range []string{"DELETE\n", "part of a line"} {
			c := dial(t, s.addr)
			c.Send("STARTTLS\n" + behind)
			c.ExpectEOF("220 go\n")
			c.Close()
			if why := <-h.closed; why != ErrClearInput {
				t.Errorf("Closed(%v); want ErrClearInput", why)
			}
		}
		waitFor(t, "not 2 counted as broken TLS", func() bool { return s.Stats().Closed.TLS == 2 })
	})
}

func TestStartTLSFails(t *testing.T) {
	forEachSetup(t, func(t *testing.T, srv *Server) {
		h := newStartTLSHandler()
		srv.Handler = Lines(h)
		s := startServer(t, srv)
		broken := func(why error) bool { _, ok := errors.AsType[*TLSError](why); return ok }

		c := h.requestTLS(t, s.addr)
		(<-h.refs).Send([]byte("lost"))
		io.WriteString(c, "still in clear\n")
		io.ReadAll(c)
		c.Close()
		if why := <-h.closed; !broken(why) {
			t.Errorf("no TLS: Closed(%v)", why)
		}

		c = h.requestTLS(t, s.addr)
		c.Close()
		if why := <-h.closed; why != io.EOF && !broken(why) {
			t.Errorf("the end: Closed(%v)", why)
		}

		c = h.requestTLS(t, s.addr) // who does not know the certificate says so
		tls.Client(c, &tls.Config{ServerName: "example.com"}).Handshake()
		c.Close()
		if why := <-h.closed; !broken(why) {
			t.Errorf("an alert: Closed(%v)", why)
		}
	})
}

func TestStartTLSOfSilentPeers(t *testing.T) {
	forEachSetup(t, func(t *testing.T, srv *Server) {
		h := newStartTLSHandler()
		srv.Handler = Lines(h)
		t.Parallel()
		srv.Limits.HandshakeTimeout = 300 * time.Millisecond
		s := startServer(t, srv)
		c := h.requestTLS(t, s.addr)
		io.ReadAll(c)
		c.Close()
		if why := <-h.closed; why != ErrHandshakeTimeout {
			t.Errorf("silence: Closed(%v)", why)
		}

		c = h.requestTLS(t, s.addr)
		done := make(chan error, 1)
		go func() { done <- s.Shutdown(context.Background()) }()
		io.ReadAll(c)
		c.Close()
		expectNoError(t, <-done)
		if why := <-h.closed; why != ErrServerClosed && why != ErrHandshakeTimeout {
			t.Errorf("a drain: Closed(%v)", why)
		}
		if n := s.Stats(); n.Greeting != 0 || n.Open != 0 {
			t.Errorf("%d greet, %d open at the end", n.Greeting, n.Open)
		}
	})
}

// startTLSClient is the handler of a client that starts TLS.
type startTLSClient struct {
	Base
	heard chan string
	cfg   *tls.Config
}

func (h *startTLSClient) Opened(c *Conn) { c.WriteString("STARTTLS\n") }

func (h *startTLSClient) Received(c *Conn, in []byte) int {
	if c.TLS() != nil {
		h.heard <- string(in)
		return len(in)
	}
	if string(in) == "220 go\n" {
		if err := c.StartTLS(h.cfg); err != nil {
			h.heard <- err.Error()
			c.Close()
		}
		return len(in)
	}
	return 0
}

func (h *startTLSClient) Secured(c *Conn) { c.WriteString("hello\n") }

func TestStartTLSOfClient(t *testing.T) {
	forEachSetup(t, func(t *testing.T, srv *Server) {
		srv.Handler = Lines(newStartTLSHandler())
		s := startServer(t, srv)
		_, client := identity()
		h := &startTLSClient{heard: make(chan string, 10), cfg: client}
		requireNoError(t, s.Dial(Dial{Addr: s.addr, Handler: h}))
		var heard string
		for !strings.HasSuffix(heard, "hello\n") {
			heard += testkit.Receive(t, h.heard, "an answer")
		}
		if heard != "secured true\nhello\n" {
			t.Errorf("heard %q", heard)
		}
		bad := &startTLSClient{heard: make(chan string, 10), cfg: &tls.Config{}}
		requireNoError(t, s.Dial(Dial{Addr: s.addr, Handler: bad}))
		if text := <-bad.heard; !strings.Contains(text, "ServerName is empty") {
			t.Errorf("without a name: %q", text)
		}
	})
}

func TestStartTLSBadUse(t *testing.T) {
	server, _ := identity()
	errs := make(chan error, 2)
	h := Lines(MessageFunc(func(c *Conn, _ []byte) {
		errs <- c.StartTLS(nil)
		errs <- c.StartTLS(&tls.Config{})
	}))
	s := startServer(t, &Server{Handler: h})
	io.WriteString(dial(t, s.addr), "x\n")
	for range 2 {
		if err := <-errs; !errors.Is(err, ErrBadConfig) {
			t.Errorf("%v; want ErrBadConfig", err)
		}
	}
	h = Lines(MessageFunc(func(c *Conn, _ []byte) {
		errs <- c.StartTLS(server)
		errs <- c.Detach(func(net.Conn, []byte) {})
	}))
	s = startServer(t, &Server{Handler: h, TLSConfig: server})
	io.WriteString(tls.Client(dial(t, s.addr), &tls.Config{InsecureSkipVerify: true}), "x\n")
	for range 2 {
		if err := <-errs; !errors.Is(err, ErrBadUse) {
			t.Errorf("with TLS already: %v; want ErrBadUse", err)
		}
	}
}
