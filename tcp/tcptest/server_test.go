package tcptest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
)

// callRecorder is a handler that echoes lines and records its calls.
type callRecorder struct {
	events []string
	refs   []tcp.Ref
}

func (d *callRecorder) record(format string, args ...any) {
	d.events = append(d.events, fmt.Sprintf(format, args...))
}

func (d *callRecorder) Opened(c *tcp.Conn) {
	d.refs = append(d.refs, c.Ref())
	d.record("opened %v", c.RemoteAddr())
}

func (d *callRecorder) Message(c *tcp.Conn, line []byte) {
	d.record("line %s", line)
	switch text := string(line); {
	case text == "quit":
		c.Close()
	case text == "panic":
		panic("as asked")
	case strings.HasPrefix(text, "much "):
		c.WriteString(strings.Repeat("x", 1000))
	default:
		c.WriteString(text + "\n")
	}
}

func (d *callRecorder) Writable(*tcp.Conn)          { d.record("writable") }
func (d *callRecorder) Draining(c *tcp.Conn)        { c.WriteString("bye\n") }
func (d *callRecorder) Closed(_ *tcp.Conn, w error) { d.record("closed %v", w) }

// startRecorded serves a callRecorder.
func startRecorded(t *testing.T, with func(*tcp.Server)) (*tcptest.Server, *tcp.Server, *callRecorder) {
	t.Helper()
	d := &callRecorder{}
	srv := &tcp.Server{Handler: tcp.Lines(d)}
	if with != nil {
		with(srv)
	}
	return tcptest.NewServer(t, srv), srv, d
}

func (d *callRecorder) expectCalls(t *testing.T, want ...string) {
	t.Helper()
	if !reflect.DeepEqual(d.events, want) {
		t.Errorf("happened:\n\t%s\nexpected:\n\t%s", strings.Join(d.events, "\n\t"), strings.Join(want, "\n\t"))
	}
	d.events = nil
}

func TestLines(t *testing.T) {
	s, _, d := startRecorded(t, nil)
	p := s.Dial()
	p.Send("he")
	if out := p.Output(); out != "" {
		t.Errorf("output %q after half a line", out)
	}
	p.Send("llo\nyou\n")
	p.Expect("hello\n")
	p.Expect("yo")
	if out := p.Output(); out != "u\n" {
		t.Errorf("output %q, expected the rest", out)
	}
	if _, closed := p.Closed(); closed {
		t.Error("closed")
	}
	p.CloseWrite()
	p.ExpectClosed(io.EOF)
	d.expectCalls(t, "opened 198.51.100.1:1024", "line hello", "line you", "closed EOF")
	if _, err := p.Write([]byte("more")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("Write after the end: %v", err)
	}
}

func TestReset(t *testing.T) {
	s, _, d := startRecorded(t, nil)
	p := s.Dial()
	p.Reset()
	p.ExpectClosed(syscall.ECONNRESET)
	if err := d.refs[0].Send([]byte("late")); !errors.Is(err, tcp.ErrClosed) {
		t.Errorf("Send: %v", err)
	}
}

// TestTimes checks that each timeout passes exactly, and not 40 ms earlier.
func TestTimes(t *testing.T) {
	const limit = 10 * time.Second
	for _, c := range []struct {
		name  string
		limit *time.Duration
		why   error
		do    func(*tcptest.Peer)
	}{
		{"FirstByteTimeout", &limits.FirstByteTimeout, tcp.ErrFirstByteTimeout, func(*tcptest.Peer) {}},
		{"MessageTimeout", &limits.MessageTimeout, tcp.ErrMessageTimeout, func(p *tcptest.Peer) { p.Send("half") }},
		{"IdleTimeout", &limits.IdleTimeout, tcp.ErrIdleTimeout, func(p *tcptest.Peer) { p.Send("a\n") }},
		{"WriteTimeout", &limits.WriteTimeout, tcp.ErrWriteTimeout, func(p *tcptest.Peer) {
			p.StopReading()
			p.Send("a\n")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			limits = tcp.Limits{FirstByteTimeout: tcp.Never, MessageTimeout: tcp.Never, WriteTimeout: tcp.Never}
			*c.limit = limit
			s, _, _ := startRecorded(t, func(srv *tcp.Server) { srv.Limits = limits })
			for range 70 { // the core looks at the clock in another way for one read in 64
				p := s.Dial()
				c.do(p)
				s.Advance(limit - 40*time.Millisecond)
				if why, closed := p.Closed(); closed {
					t.Fatalf("closed too early: %v", why)
				}
				s.Advance(40 * time.Millisecond)
				p.ExpectClosed(c.why)
			}
		})
	}
}

var limits tcp.Limits

func TestSlowPeer(t *testing.T) {
	s, _, d := startRecorded(t, func(srv *tcp.Server) {
		srv.Limits.HighWater, srv.Limits.LowWater, srv.Limits.MaxUnsent = 2000, 1000, 5000
	})
	p := s.Dial()
	p.StopReading()
	p.Send("much 1\nmuch 2\nmuch 3\nmuch 4\n")
	d.expectCalls(t, "opened 198.51.100.1:1024", "line much 1", "line much 2", "line much 3") // the fourth waits
	p.Take(1500)
	d.expectCalls(t)
	p.Take(600)
	d.expectCalls(t, "writable", "line much 4")
	if n := len(p.Output()); n != 2100 {
		t.Errorf("%d bytes of output, expected 2100", n)
	}
	p.StartReading()
	if n := len(p.Output()); n != 1900 {
		t.Errorf("%d bytes of output, expected 1900", n)
	}
}

// TestHeld sends more output than a peer buffers.
func TestHeld(t *testing.T) {
	const held = 16 << 20
	s, _, d := startRecorded(t, func(srv *tcp.Server) { srv.Limits.MaxUnsent = 4 << 20 })
	p := s.Dial()
	for range 4 {
		if err := d.refs[0].Send(make([]byte, 4<<20)); err != nil {
			t.Fatal(err)
		}
		s.Advance(0)
	}
	if err := d.refs[0].Send(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	if n := len(p.Output()); n != held {
		t.Errorf("%d bytes of output, expected %d", n, held)
	}
	if n := len(p.Output()); n != 100 {
		t.Errorf("%d bytes of output, expected 100", n)
	}
}

// TestEach checks that Each visits open connections only, not closed or rejected ones.
func TestEach(t *testing.T) {
	s, srv, _ := startRecorded(t, func(srv *tcp.Server) { srv.Limits.MaxConns = 2 })
	a, b := s.Dial(), s.Dial()
	rejected := s.Dial()
	rejected.ExpectClosed(tcp.ErrTooManyConns)
	a.Reset()
	a.ExpectClosed(syscall.ECONNRESET)
	seen := make(chan string, 3)
	done := make(chan error, 1)
	go func() {
		done <- srv.Each(context.Background(), func(c *tcp.Conn) {
			seen <- c.RemoteAddr().String()
			c.WriteString("seen\n")
		})
	}()
	b.Expect("seen\n")
	if err := <-done; err != nil || len(seen) != 1 || <-seen != b.Addr().String() {
		t.Errorf("Each: %v, and has seen more than %v", err, b.Addr())
	}
}

func TestGroupAndBroadcast(t *testing.T) {
	s, srv, d := startRecorded(t, nil)
	ann, bob, cat := s.Dial(), s.Dial(), s.Dial()
	var g tcp.Group
	g.Add(d.refs[0])
	g.Add(d.refs[2])
	for range 3 {
		if sent, full := g.Broadcast([]byte("news\n")); sent != 2 || full != 0 {
			t.Fatalf("sent to %d, %d full", sent, full)
		}
	}
	ann.Expect("news\nnews\nnews\n")
	cat.Expect("news\nnews\nnews\n")
	if _, err := srv.Broadcast(tcp.Broadcast{All: true, Message: []byte("all\n")}); err != nil {
		t.Fatal(err)
	}
	ann.Expect("all\n")
	bob.Expect("all\n")
	if n := srv.Stats().Open; n != 3 {
		t.Errorf("Stats has %d connections", n)
	}
	if err := srv.CloseConns(bob.Addr()); err != nil {
		t.Fatal(err)
	}
	bob.ExpectClosed(tcp.ErrClosedByOperator)
}

// TestBubble checks that the test also controls timers of a handler in a synctest bubble.
func TestBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		later := tcp.MessageFunc(func(c *tcp.Conn, line []byte) {
			ref := c.Ref()
			time.AfterFunc(time.Hour, func() { _ = ref.Send([]byte("an hour later\n")) })
		})
		s := tcptest.NewServer(t, &tcp.Server{Handler: tcp.Lines(later)})
		p := s.Dial()
		p.Send("hello\n")
		time.Sleep(time.Hour)
		synctest.Wait()
		p.Expect("an hour later\n")
	})
}

func TestDrain(t *testing.T) {
	stopping := 0
	s, srv, d := startRecorded(t, func(srv *tcp.Server) {
		srv.Stopping = func() { stopping++ }
		srv.Limits.MessageTimeout = time.Minute
	})
	idle, busy, stuck := s.Dial(), s.Dial(), s.Dial()
	busy.Send("half")
	stuck.Send("half")
	d.events = nil
	s.Drain()
	idle.Expect("bye\n")
	idle.ExpectClosed(tcp.ErrServerClosed)
	busy.Expect("bye\n")
	busy.Send(" a line\n")
	busy.Expect("half a line\n")
	busy.ExpectClosed(tcp.ErrServerClosed)
	s.Advance(29 * time.Second)
	if why, closed := stuck.Closed(); closed {
		t.Errorf("closed after 29 s: %v", why)
	}
	s.Advance(time.Second)
	stuck.ExpectClosed(tcp.ErrServerClosed)
	s.Drain()
	if _, err := srv.Broadcast(tcp.Broadcast{All: true}); !errors.Is(err, tcp.ErrServerClosed) || stopping != 1 {
		t.Errorf("Broadcast: %v; Stopping was called %d times", err, stopping)
	}
}

// TestShutdown shuts the server down directly, from the test and from a handler.
func TestShutdown(t *testing.T) {
	s, srv, _ := startRecorded(t, nil)
	p := s.Dial()
	if err := srv.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	p.ExpectClosed(tcp.ErrServerClosed)

	var own *tcp.Server
	ended := make(chan error, 1)
	h := tcp.MessageFunc(func(c *tcp.Conn, line []byte) {
		go func() { ended <- own.Shutdown(context.Background()) }()
	})
	own = &tcp.Server{Handler: tcp.Lines(h)}
	s = tcptest.NewServer(t, own)
	p = s.Dial()
	p.Send("end\n")
	p.ExpectClosed(tcp.ErrServerClosed)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestEntry(t *testing.T) {
	s, srv, d := startRecorded(t, func(srv *tcp.Server) {
		srv.Limits.MaxConns, srv.Limits.AcceptRate = 2, 3
		srv.Deny = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
		srv.Refuse = func(_ net.Addr, why error) []byte { return []byte("no\n") }
	})
	bad := s.DialFrom(netip.MustParseAddrPort("203.0.113.7:1"))
	bad.Expect("no\n")
	bad.ExpectClosed(tcp.ErrDenied)
	first, _ := s.Dial(), s.DialFrom(netip.AddrPort{})
	d.expectCalls(t, "opened 198.51.100.1:1025", "opened ")
	third := s.Dial() // waits for AcceptRate
	third.Send("hello\n")
	first.Reset()
	s.Advance(time.Second)
	third.Expect("hello\n")
	s.Dial().ExpectClosed(tcp.ErrTooManyConns)
	if err := srv.PauseAccepting(); err != nil {
		t.Fatal(err)
	}
	waits := s.Dial()
	s.Advance(time.Minute)
	if _, closed := waits.Closed(); closed {
		t.Error("was let in")
	}
}

// TestProxy tests with the layers below the handler.
func TestProxy(t *testing.T) {
	s, _, d := startRecorded(t, func(srv *tcp.Server) {
		srv.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	})
	p := s.Dial()
	p.Send("PROXY TCP4 203.0.113.9 192.0.2.1 77 9000\r\nhello\n")
	p.Expect("hello\n")
	d.expectCalls(t, "opened 203.0.113.9:77", "line hello")
	silent := s.Dial()
	s.Advance(10 * time.Second)
	if _, closed := silent.Closed(); !closed {
		t.Error("a proxy that says nothing was not turned away")
	}
}

func TestExample(t *testing.T) { testEcho(t) }
