package tcptest_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
)

// counterHandler counts lines, each connection's and all. A connection whose last line was "stay" is not saved.
type counterHandler struct {
	total  int
	closed error
}

type count struct {
	lines int
	last  string
}

func (h *counterHandler) Opened(c *tcp.Conn) { c.SetValue(&count{}) }

func (h *counterHandler) Message(c *tcp.Conn, line []byte) {
	n := c.Value().(*count)
	n.lines++
	h.total++
	n.last = string(line)
	fmt.Fprintf(c, "%s %d of %d\n", line, n.lines, h.total)
}

func (h *counterHandler) Timer(c *tcp.Conn)             { c.WriteString("timer\n") }
func (h *counterHandler) Closed(_ *tcp.Conn, why error) { h.closed = why }

var errStay = errors.New("as asked")

func (h *counterHandler) Save(c *tcp.Conn, to []byte) ([]byte, error) {
	n := c.Value().(*count)
	if n.last == "stay" {
		return nil, errStay
	}
	return fmt.Appendf(to, "%d", n.lines), nil
}

func (h *counterHandler) Restore(c *tcp.Conn, state []byte) error {
	var n count
	if _, err := fmt.Sscan(string(state), &n.lines); err != nil {
		return err
	}
	c.SetValue(&n)
	c.SetTimer(time.Minute)
	return nil
}

func (h *counterHandler) SaveState(w io.Writer) error {
	if h.total > 100 {
		return errStay
	}
	_, err := fmt.Fprintln(w, h.total)
	return err
}

func (h *counterHandler) RestoreState(r io.Reader) error {
	_, err := fmt.Fscan(bufio.NewReader(r), &h.total)
	return err
}

func TestMigrateTo(t *testing.T) {
	config, roots := testkit.Identity()
	for _, secure := range []bool{false, true} {
		old, current := &counterHandler{}, &counterHandler{}
		newServer := func(h *counterHandler) *tcptest.Server {
			srv := &tcp.Server{Handler: tcp.Lines(h)}
			if secure {
				srv.TLSConfig = config
			}
			return tcptest.NewServer(t, srv)
		}
		s, next := newServer(old), newServer(current)
		dial := func(s *tcptest.Server) *tcptest.Peer {
			p := s.Dial()
			if secure {
				testkit.RequireNoError(t, p.StartTLS(roots))
			}
			return p
		}
		ann, bob, gone, slow := dial(s), dial(s), dial(s), dial(s)
		gone.Reset()
		ann.Send("one\ntw")
		ann.Expect("one 1 of 1\n")
		bob.Send("stay\n")
		slow.StopReading()
		slow.Send("slow\n")
		if stayed := s.MigrateTo(next); len(stayed) != 1 || !errors.Is(stayed[bob], errStay) {
			t.Errorf("these stay: %v", stayed)
		}
		if old.closed != tcp.ErrHandedOver {
			t.Errorf("moved connections have closed for %v", old.closed)
		}
		ann.Send("o\n")
		ann.Expect("two 2 of 4\n")
		slow.StartReading()
		slow.Expect("slow 1 of 3\n")
		bob.Expect("stay 1 of 2\n")
		bob.Send("four\n")
		bob.Expect("four 2 of 4\n")
		next.Advance(time.Minute)
		ann.Expect("timer\n")
		if stayed := s.MigrateTo(next); len(stayed) != 0 {
			t.Errorf("now these stay: %v", stayed)
		}
		bob.Send("five\n")
		bob.Expect("five 3 of 5\n")
		for _, p := range []*tcptest.Peer{ann, bob} {
			p.CloseWrite()
			p.ExpectClosed(io.EOF)
		}
		if p := dial(next); p.Addr().Port() != 1024+4 {
			t.Errorf("another peer has the address %v", p.Addr())
		}
	}
	got := runFailingTest(func(t *fakeTB) {
		s := tcptest.NewServer(t, &tcp.Server{Handler: tcp.Lines(&counterHandler{total: 101})})
		s.MigrateTo(tcptest.NewServer(t, &tcp.Server{Handler: tcp.Lines(&counterHandler{})}))
	})
	if !strings.Contains(got, "SaveState or RestoreState: as asked") {
		t.Errorf("failure is %q", got)
	}
}

// upgradable starts TLS after the line STARTTLS, and echoes other lines.
type upgradable struct{ config *tls.Config }

func (h upgradable) Opened(*tcp.Conn)        {}
func (h upgradable) Closed(*tcp.Conn, error) {}
func (h upgradable) Secured(c *tcp.Conn)     { c.WriteString("secure\n") }
func (h upgradable) Message(c *tcp.Conn, line []byte) {
	if string(line) == "STARTTLS" {
		c.WriteString("go ahead\n")
		_ = c.StartTLS(h.config)
		return
	}
	fmt.Fprintf(c, "%s\n", line)
}

func TestStartTLS(t *testing.T) {
	server, client := testkit.Identity()
	s := tcptest.NewServer(t, &tcp.Server{Handler: tcp.Lines(upgradable{server})})
	dial := func() *tcptest.Peer {
		p := s.Dial()
		p.Send("STARTTLS\n")
		p.Expect("go ahead\n")
		return p
	}
	p := dial()
	testkit.RequireNoError(t, p.StartTLS(client))
	long := strings.Repeat("x", 50_000) + "\n"
	p.Expect("secure\n")
	p.Send(long)
	p.Expect(long)
	p.Send("hel")
	p.Send("lo\n")
	if got := p.Output(); got != "hello\n" {
		t.Errorf("got %q", got)
	}
	p.CloseWrite()
	p.ExpectClosed(io.EOF)
	p = dial()
	if err := p.StartTLS(&tls.Config{}); err == nil || !strings.Contains(err.Error(), "ServerName") {
		t.Errorf("a handshake without a name: %v", err)
	}
	p.ExpectClosed(io.EOF)
	p = dial()
	if err := p.StartTLS(&tls.Config{ServerName: "example.com"}); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a handshake without trust: %v", err)
	}
	testkit.WaitFor(t, "an alert does not close the connection", func() bool {
		why, closed := p.Closed()
		return closed && errors.As(why, new(*tcp.TLSError))
	})
	p = dial()
	s.Advance(11 * time.Second)
	p.ExpectClosed(tcp.ErrHandshakeTimeout)
}

// dialer dials the address of each line. The results go to the first connection.
type dialer struct{ client *tls.Config }

func (h dialer) Opened(*tcp.Conn)        {}
func (h dialer) Closed(*tcp.Conn, error) {}
func (h dialer) Message(c *tcp.Conn, line []byte) {
	addr, secure := strings.CutPrefix(string(line), "tls ")
	d := tcp.Dial{Addr: addr, Handler: dialedHandler{c.Ref()}, Timeout: time.Second}
	if secure {
		d.TLSConfig = h.client
	}
	c.Pause()
	if err := c.Dial(d); err != nil {
		c.CloseWith(err)
	}
}

type dialedHandler struct{ client tcp.Ref }

func (h dialedHandler) Opened(c *tcp.Conn)                    { _ = c.Relay(h.client) }
func (h dialedHandler) Received(*tcp.Conn, []byte) (used int) { return 0 }
func (h dialedHandler) Ended(*tcp.Conn, []byte) (used int)    { return 0 }
func (h dialedHandler) Closed(*tcp.Conn, error)               {}
func (h dialedHandler) DialFailed(d tcp.Dial, err error) {
	_ = h.client.Send([]byte(d.Addr + " " + err.Error()))
	_ = h.client.Close()
}

func TestAcceptDial(t *testing.T) {
	server, client := testkit.Identity()
	s := tcptest.NewServer(t, &tcp.Server{Handler: tcp.Lines(dialer{client}), Limits: tcp.Limits{MaxConns: 7}})
	for _, prefix := range []string{"", "tls "} {
		p := s.Dial()
		p.Send(prefix + "192.0.2.7:80\nand more")
		target := s.AcceptDial()
		if target.Addr() != netip.MustParseAddrPort("192.0.2.7:80") {
			t.Errorf("dialed %v", target.Addr())
		}
		if prefix != "" {
			testkit.RequireNoError(t, target.StartTLS(server))
		}
		target.Expect("and more")
		target.Send("answer")
		p.Expect("answer")
		target.CloseWrite()
		p.ExpectClosed(io.EOF)
		target.ExpectClosed(io.EOF)
	}
	for want, end := range map[string]func(){
		"connection refused":       func() { s.RefuseDial(syscall.ECONNREFUSED) },
		tcp.ErrDialTimeout.Error(): func() { s.RefuseDial(tcp.ErrDialTimeout) },
	} {
		p := s.Dial()
		p.Send("192.0.2.8:80\n")
		end()
		p.Expect("192.0.2.8:80 " + want)
		p.ExpectClosed(nil)
	}
	var last *tcptest.Peer
	for range 4 {
		last = s.Dial()
		last.Send("192.0.2.9:80\n")
	}
	last.Expect("192.0.2.9:80 " + tcp.ErrFull.Error()) // of MaxConns
	first := s.AcceptDial()
	s.StartDrain()
	for range 2 {
		s.Advance(30 * time.Second)
	}
	first.ExpectClosed(tcp.ErrServerClosed)
	for _, f := range []func(*tcptest.Server){func(s *tcptest.Server) { s.AcceptDial() }, func(s *tcptest.Server) { s.RefuseDial(nil) }} {
		got := runFailingTest(func(t *fakeTB) { f(tcptest.NewServer(t, &tcp.Server{Handler: tcp.Base{}})) })
		if !strings.Contains(got, "no dial is pending") {
			t.Errorf("failure is %q", got)
		}
	}
}
