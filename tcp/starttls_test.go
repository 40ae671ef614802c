package tcp

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// startTLSHandler starts TLS at the line STARTTLS and echoes other lines.
type startTLSHandler struct {
	config *tls.Config
	refs   chan Ref
	closed chan error
}

func (h *startTLSHandler) Opened(c *Conn) {}

func (h *startTLSHandler) Message(c *Conn, line []byte) {
	if string(line) != "STARTTLS" {
		echoLine(c, line)
		return
	}
	c.WriteString("220 go\n")
	if err := c.StartTLS(h.config); err != nil {
		c.CloseWith(err)
		return
	}
	if _, err := c.WriteString("too early"); !errors.Is(err, ErrBadUse) {
		c.CloseWith(fmt.Errorf("Write before the handshake: %w", err))
	}
	if err := c.StartTLS(h.config); !errors.Is(err, ErrBadUse) {
		c.CloseWith(fmt.Errorf("StartTLS twice: %w", err))
	}
	h.refs <- c.Ref()
}

func (h *startTLSHandler) Secured(c *Conn) { fmt.Fprintf(c, "secured %v\n", c.TLS() != nil) }

func (h *startTLSHandler) Closed(_ *Conn, why error) { h.closed <- why }

func startStartTLS(t *testing.T, srv *Server) (*started, *startTLSHandler) {
	t.Helper()
	shared, _ := identity()
	h := &startTLSHandler{shared.Clone(), make(chan Ref, 100), make(chan error, 100)} // without ticket keys
	srv.Handler = Lines(h)
	return startServer(t, srv), h
}

func (h *startTLSHandler) requestTLS(t *testing.T, addr string) *testkit.Conn {
	t.Helper()
	c := dial(t, addr)
	c.ExchangeLine("in clear", "in clear")
	c.ExchangeLine("STARTTLS", "220 go")
	return c
}

func TestStartTLS(t *testing.T) {
	t.Parallel() // mostly waits
	forEachSetup(t, func(t *testing.T, srv *Server) {
		const conns = 10
		s, h := startStartTLS(t, srv)
		_, client := identity()
		var all sync.WaitGroup
		for range conns {
			c := h.requestTLS(t, s.addr)
			ref := <-h.refs
			all.Go(func() {
				expectNoError(t, ref.Send([]byte("posted\n"))) // which waits
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
			expectReason(t, "a client's end", h.closed, io.EOF)
		}
		s.waitOpen(t, 0)
		if n := s.Stats(); n.Handshaking != 0 || n.Accepted != conns || n.Refused.Total() != 0 {
			t.Errorf("%d greet, %d accepted, refused %+v; want 0, %d, none", n.Handshaking, n.Accepted, n.Refused, conns)
		}
		client = client.Clone()
		client.ClientSessionCache = tls.NewLRUClientSessionCache(1)
		for i := range 2 {
			tc := tls.Client(h.requestTLS(t, s.addr), client)
			testkit.NewConn(t, tc).ExchangeLine("hello", "secured true")
			expectEqual(t, fmt.Sprintf("connection %d: resumed", i), tc.ConnectionState().DidResume, i > 0)
		}
	})
}

// Unencrypted input after the command is not treated as encrypted: CVE-2011-0411.
func TestStartTLSInjected(t *testing.T) {
	forEachSetup(t, func(t *testing.T, srv *Server) {
		s, h := startStartTLS(t, srv)
		for _, behind := range []string{"DELETE\n", "part of a line"} {
			c := dial(t, s.addr)
			c.Send("STARTTLS\n" + behind)
			c.ExpectEOF("220 go\n")
			c.Close()
			expectReason(t, behind, h.closed, ErrClearInput)
		}
		waitFor(t, "not 2 counted as broken TLS", func() bool { return s.Stats().Closed.TLS == 2 })
	})
}

func TestStartTLSFails(t *testing.T) {
	forEachSetup(t, func(t *testing.T, srv *Server) {
		t.Parallel()
		impatient := &Server{Model: srv.Model, Workers: srv.Workers, Limits: srv.Limits}
		impatient.Limits.HandshakeTimeout = 300 * time.Millisecond
		s, h := startStartTLS(t, srv)
		for name, act := range map[string]func(*testkit.Conn){
			"clear": func(c *testkit.Conn) {
				(<-h.refs).Send([]byte("lost"))
				c.Send("still in clear\n")
				c.ExpectClosed()
			},
			"end":   func(c *testkit.Conn) { c.Close() },
			"alert": func(c *testkit.Conn) { tls.Client(c, &tls.Config{ServerName: "example.com"}).Handshake() },
		} {
			c := h.requestTLS(t, s.addr)
			act(c)
			c.Close()
			why := testkit.Receive(t, h.closed, name)
			_, broken := errors.AsType[*TLSError](why)
			if !broken && (name != "end" || why != io.EOF) {
				t.Errorf("%s: Closed(%v)", name, why)
			}
		}
		s, h = startStartTLS(t, impatient)
		c := h.requestTLS(t, s.addr)
		c.ExpectClosed()
		c.Close()
		expectReason(t, "silence", h.closed, ErrHandshakeTimeout)
		c = h.requestTLS(t, s.addr)
		done := make(chan error, 1)
		go func() { done <- s.Shutdown(context.Background()) }()
		c.ExpectClosed()
		c.Close()
		expectNoError(t, <-done)
		if why := <-h.closed; why != ErrServerClosed && why != ErrHandshakeTimeout {
			t.Errorf("a drain: Closed(%v)", why)
		}
		if n := s.Stats(); n.Handshaking != 0 || n.Open != 0 {
			t.Errorf("%d greet, %d open at the end", n.Handshaking, n.Open)
		}
	})
}

// startTLSClient is a handler that sends a line when it has started TLS.
type startTLSClient struct{ hooks }

func (startTLSClient) Secured(c *Conn) { c.WriteString("hello\n") }

func TestStartTLSOfClient(t *testing.T) {
	forEachSetup(t, func(t *testing.T, srv *Server) {
		s, _ := startStartTLS(t, srv)
		_, config := identity()
		heard := make(chan string, 10)
		h := Lines(startTLSClient{hooks{
			opened: func(c *Conn) { c.WriteString("STARTTLS\n") },
			message: func(c *Conn, line []byte) {
				if c.TLS() != nil {
					heard <- string(line)
				} else if err := c.StartTLS(config); err != nil {
					heard <- err.Error()
					c.Close()
				}
			},
		}})
		requireNoError(t, s.Dial(Dial{Addr: s.addr, Handler: h}))
		for _, want := range []string{"secured true", "hello"} {
			expectEqual(t, "heard", testkit.Receive(t, heard, want), want)
		}
		config = &tls.Config{}
		requireNoError(t, s.Dial(Dial{Addr: s.addr, Handler: h}))
		if text := testkit.Receive(t, heard, "an error"); !strings.Contains(text, "ServerName is empty") {
			t.Errorf("without a name: %q", text)
		}
	})
}

func TestStartTLSBadUse(t *testing.T) {
	server, client := identity()
	errs := make(chan error, 2)
	s := startServer(t, &Server{Handler: Lines(MessageFunc(func(c *Conn, _ []byte) {
		errs <- c.StartTLS(nil)
		errs <- c.StartTLS(&tls.Config{})
	}))})
	dial(t, s.addr).Send("x\n")
	expectReason(t, "StartTLS(nil)", errs, ErrBadConfig)
	expectReason(t, "StartTLS without a certificate", errs, ErrBadConfig)
	s = startServer(t, &Server{TLSConfig: server, Handler: Lines(MessageFunc(func(c *Conn, _ []byte) {
		errs <- c.StartTLS(server)
		errs <- c.Detach(func(net.Conn, []byte) {})
	}))})
	testkit.DialTLS(t, s.addr, client).Send("x\n")
	expectReason(t, "StartTLS with TLS", errs, ErrBadUse)
	expectReason(t, "Detach with TLS", errs, ErrBadUse)
}
