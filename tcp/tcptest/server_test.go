package tcptest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
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
func (d *callRecorder) Missed(_ *tcp.Conn, n int64) { d.record("missed %d", n) }
func (d *callRecorder) Draining(c *tcp.Conn)        { c.WriteString("bye\n") }
func (d *callRecorder) Closed(_ *tcp.Conn, w error) { d.record("closed %v", w) }

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
	if !slices.Equal(d.events, want) {
		t.Errorf("happened:\n\t%s\nexpected:\n\t%s", strings.Join(d.events, "\n\t"), strings.Join(want, "\n\t"))
	}
	d.events = nil
}

func expectOutput(t *testing.T, p *tcptest.Peer, want string) {
	t.Helper()
	if got := p.Output(); got != want {
		t.Errorf("output is %d bytes, %.50q; expected %d, %.50q", len(got), got, len(want), want)
	}
}

func expectOpen(t *testing.T, p *tcptest.Peer) {
	t.Helper()
	if why, closed := p.Closed(); closed {
		t.Errorf("closed too early: %v", why)
	}
}

func TestLines(t *testing.T) {
	s, _, d := startRecorded(t, nil)
	p := s.Dial()
	p.Send("he")
	expectOutput(t, p, "")
	p.Send("llo\nyou\n")
	p.Expect("hello\n")
	p.Expect("yo")
	expectOutput(t, p, "u\n")
	expectOpen(t, p)
	p.CloseWrite()
	p.ExpectClosed(io.EOF)
	d.expectCalls(t, "opened 198.51.100.1:1024", "line hello", "line you", "closed EOF")
	if _, err := p.Write([]byte("more")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("Write after the end: %v", err)
	}
	p = s.Dial()
	p.Reset()
	p.ExpectClosed(syscall.ECONNRESET)
	if err := d.refs[1].Send([]byte("late")); !errors.Is(err, tcp.ErrClosed) {
		t.Errorf("Send: %v", err)
	}
}

func TestSlowPeer(t *testing.T) {
	s, _, d := startRecorded(t, func(srv *tcp.Server) {
		srv.Limits.HighWater, srv.Limits.LowWater, srv.Limits.MaxUnsent = 2000, 1000, 5000
	})
	p := s.Dial()
	p.StopReading()
	p.Send("much 1\nmuch 2\nmuch 3\nmuch 4\n")
	d.expectCalls(t, "opened 198.51.100.1:1024", "line much 1", "line much 2", "line much 3") // the fourth waits
	p.ReadMore(1500)
	d.expectCalls(t)
	p.ReadMore(600)
	d.expectCalls(t, "writable", "line much 4")
	expectOutput(t, p, strings.Repeat("x", 2100))
	p.StartReading()
	expectOutput(t, p, strings.Repeat("x", 1900))
}

// TestMissed sends messages and values to a peer that does not read, and reads some of its output.
func TestMissed(t *testing.T) {
	s, _, d := startRecorded(t, func(srv *tcp.Server) {
		srv.Limits.HighWater, srv.Limits.LowWater, srv.Limits.MaxUnsent = 2000, 1000, 3000
		srv.SlowConsumer = tcp.DropMessage
	})
	p := s.Dial()
	d.events = nil
	p.StopReading()
	var messages, values tcp.Group
	messages.Add(d.refs[0])
	values.Add(d.refs[0])
	for range 5 {
		messages.Broadcast(make([]byte, 1000))
		s.Advance(0)
	}
	p.ReadMore(1999)
	d.expectCalls(t)
	p.ReadMore(1)
	d.expectCalls(t, "missed 2", "writable")
	p.ReadMore(500)
	for i := range 4 {
		values.SendLatest(fmt.Append(nil, i))
		s.Advance(0)
	}
	d.expectCalls(t)
	p.StartReading()
	d.expectCalls(t, "missed 3")
}

// Server.SlowConsumer applies to a member that does not read, in a group of one, a few and many; others get every
// message.
func TestGroupSlowMember(t *testing.T) {
	const message, messages = 1000, 5
	for _, members := range []int{1, 4, 21} {
		for _, policy := range []tcp.SlowConsumer{tcp.CloseConn, tcp.DropMessage} {
			s, srv, d := startRecorded(t, func(srv *tcp.Server) {
				srv.SlowConsumer, srv.Limits.MaxUnsent, srv.Limits.HighWater = policy, 3*message, 2*message
			})
			var peers []*tcptest.Peer
			var g tcp.Group
			for i := range members {
				peers = append(peers, s.Dial())
				g.Add(d.refs[i])
			}
			slow := peers[0]
			slow.StopReading()
			for range messages {
				g.Broadcast(make([]byte, message))
				s.Advance(0)
			}
			for _, p := range peers[1:] {
				expectOutput(t, p, string(make([]byte, messages*message)))
			}
			st := srv.Stats()
			if policy == tcp.DropMessage {
				expectOpen(t, slow)
				var dropped int64
				testkit.RequireNoError(t, d.refs[0].Do(func(c *tcp.Conn) { dropped = c.Dropped() }))
				if s.Advance(0); dropped != st.Dropped {
					t.Errorf("the connection has missed %d messages, %d are counted", dropped, st.Dropped)
				}
			} else if slow.ExpectClosed(tcp.ErrSlowConsumer); st.Closed.SlowConsumer != 1 {
				t.Errorf("%d are counted as closed, expected 1", st.Closed.SlowConsumer)
			}
			if want := int64(2 * policy); st.Dropped != want {
				t.Errorf("group of %d, policy %v: %d dropped, expected %d", members, policy, st.Dropped, want)
			}
		}
	}
}

// TestDo checks that Ref.Do is ordered with sent messages, that nothing is received while reading is paused but
// everything afterwards, also by another handler, and that nothing is written after CloseWrite.
func TestDo(t *testing.T) {
	s, srv, d := startRecorded(t, nil)
	p := s.Dial()
	r := d.refs[0]
	do := func(f func(*tcp.Conn)) {
		t.Helper()
		testkit.RequireNoError(t, r.Do(f))
		s.Advance(0)
	}
	r.Send([]byte("first, "))
	do(func(c *tcp.Conn) { c.WriteString("second, ") })
	r.Send([]byte("third\n"))
	p.Expect("first, second, third\n")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := srv.Each(ctx, func(*tcp.Conn) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("Each, whose context has ended: %v", err)
	}
	do((*tcp.Conn).Pause)
	d.events = nil
	p.Send("paused\n")
	d.expectCalls(t)
	do((*tcp.Conn).Resume)
	d.expectCalls(t, "line paused")
	other := &callRecorder{}
	do(func(c *tcp.Conn) {
		if err := c.SetHandler(nil); !errors.Is(err, tcp.ErrBadUse) {
			t.Errorf("SetHandler(nil): %v", err)
		}
		c.SetValue("value")
		c.SetHandler(tcp.Lines(other))
		if c.Value() != "value" || c.Server() != srv {
			t.Errorf("with another handler its value is %v and its server %p", c.Value(), c.Server())
		}
	})
	p.Send("another handler\n")
	other.expectCalls(t, "line another handler")
	do(func(c *tcp.Conn) {
		c.CloseWrite()
		if _, err := c.WriteString("later"); !errors.Is(err, tcp.ErrClosed) {
			t.Errorf("a write after CloseWrite: %v", err)
		}
	})
	p.Reset()
	if err := r.Do(func(*tcp.Conn) {}); err != tcp.ErrClosed {
		t.Errorf("Do on a closed connection: %v", err)
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
	large := make([]byte, 1<<20+1)
	if _, err := srv.Broadcast(tcp.Broadcast{All: true, Message: large}); !errors.Is(err, tcp.ErrTooLarge) {
		t.Errorf("Broadcast of too much: %v", err)
	}
	if n := srv.Stats().Broadcasts; n != 1 {
		t.Errorf("counted %d broadcasts, expected 1", n)
	}
	g.Remove(d.refs[2])
	if n := srv.Stats().Open; n != 3 || g.Len() != 1 {
		t.Errorf("Stats has %d connections, and the group %d; expected 3 and 1", n, g.Len())
	}
	testkit.RequireNoError(t, srv.CloseConns(bob.Addr()))
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
	s.StartDrain()
	idle.Expect("bye\n")
	idle.ExpectClosed(tcp.ErrServerClosed)
	busy.Expect("bye\n")
	busy.Send(" a line\n")
	busy.Expect("half a line\n")
	busy.ExpectClosed(tcp.ErrServerClosed)
	s.Advance(29 * time.Second)
	expectOpen(t, stuck)
	s.Advance(time.Second)
	stuck.ExpectClosed(tcp.ErrServerClosed)
	s.StartDrain()
	if _, err := srv.Broadcast(tcp.Broadcast{All: true}); !errors.Is(err, tcp.ErrServerClosed) || stopping != 1 {
		t.Errorf("Broadcast: %v; Stopping was called %d times", err, stopping)
	}
}

func TestShutdown(t *testing.T) {
	for _, fromHandler := range []bool{false, true} {
		ended := make(chan error, 1)
		var srv *tcp.Server
		shutdown := func() { ended <- srv.Shutdown(context.Background()) }
		srv = &tcp.Server{Handler: tcp.Lines(tcp.MessageFunc(func(*tcp.Conn, []byte) { go shutdown() }))}
		p := tcptest.NewServer(t, srv).Dial()
		if fromHandler {
			p.Send("end\n")
		} else {
			shutdown()
		}
		p.ExpectClosed(tcp.ErrServerClosed)
		testkit.ExpectNoError(t, <-ended)
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
	testkit.RequireNoError(t, srv.PauseAccepting())
	waits := s.Dial()
	s.Advance(time.Minute)
	expectOpen(t, waits)
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

// TestTicker controls the ticks of a server with the time of a synctest bubble. Ticks that are late are skipped.
func TestTicker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const interval = 50 * time.Millisecond
		var clients tcp.Group
		ticks := 0
		s := tcptest.NewServer(t, &tcp.Server{
			Handler: tcp.Lines(tcp.MessageFunc(func(c *tcp.Conn, _ []byte) { clients.Add(c.Ref()) })),
			OnTick: func() {
				if ticks++; ticks == 3 {
					time.Sleep(5*interval + interval/2)
				}
				clients.SendLatest(fmt.Appendf(nil, "%d\n", ticks))
			},
			TickInterval: interval,
		})
		p := s.Dial()
		p.Send("join\n")
		for _, want := range []string{"1\n", "2\n", "", "", "", "", "", "", "5\n", "6\n"} {
			time.Sleep(interval)
			synctest.Wait()
			expectOutput(t, p, want)
		}
	})
}
