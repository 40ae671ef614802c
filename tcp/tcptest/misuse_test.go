package tcptest_test

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
)

// fakeTB is a test that is expected to fail.
type fakeTB struct {
	testing.TB
	cleanups []func()
	errors   []string
}

// fatal is the panic value of a fatal failure.
type fatal string

func (f *fakeTB) Helper()                   {}
func (f *fakeTB) Output() io.Writer         { return io.Discard }
func (f *fakeTB) Cleanup(do func())         { f.cleanups = append(f.cleanups, do) }
func (f *fakeTB) Errorf(s string, a ...any) { f.errors = append(f.errors, fmt.Sprintf(s, a...)) }
func (f *fakeTB) Fatalf(s string, a ...any) { panic(fatal(fmt.Sprintf(s, a...))) }
func (f *fakeTB) Fatal(a ...any)            { panic(fatal(fmt.Sprint(a...))) }

// runFailingTest runs a test to its end and returns its failures.
func runFailingTest(test func(t *fakeTB)) (failure string) {
	t := &fakeTB{}
	defer func() {
		for _, do := range t.cleanups {
			do()
		}
		failure += strings.Join(t.errors, "\n")
	}()
	defer func() {
		v := recover()
		if f, ok := v.(fatal); ok {
			failure = string(f)
		} else if v != nil {
			panic(v)
		}
	}()
	test(t)
	return ""
}

func TestFailures(t *testing.T) {
	type server = *tcptest.Server
	type peer = *tcptest.Peer
	nested := &nestedHandler{}
	for _, c := range []struct {
		want    string
		handler tcp.Handler // instead of a callRecorder
		test    func(server, peer)
	}{
		{"", nil, func(server, peer) {}},
		{`output is "one"; expected "two"; the connection is open`, nil, func(_ server, p peer) {
			p.Send("one\n")
			p.Expect("two")
		}},
		{`output is "bye\n"; expected "bye\nmore"; the connection has closed: myriad: server is shutting down`, nil, func(s server, p peer) {
			s.StartDrain()
			p.Expect("bye\nmore")
		}},
		{"the connection has closed: EOF; expected it to be closed with the error: <nil>", nil, func(_ server, p peer) {
			p.CloseWrite()
			p.ExpectClosed(nil)
		}},
		{"broken pipe", nil, func(_ server, p peer) {
			p.Reset()
			p.Send("x")
		}},
		{"ReadMore(1); expected 0 or more, after StopReading", nil, func(_ server, p peer) { p.ReadMore(1) }},
		{"ReadMore(-1)", nil, func(_ server, p peer) {
			p.StopReading()
			p.ReadMore(-1)
		}},
		{"Advance by -1ns; expected 0 to 8760h0m0s", nil, func(s server, _ peer) { s.Advance(-1) }},
		{"Advance by 8760h0m0s; expected 0 to 8759h59m59s", nil, func(s server, _ peer) {
			s.Advance(time.Second)
			s.Advance(365 * 24 * time.Hour)
		}},
		{"dial: connection refused", nil, func(s server, _ peer) {
			s.StartDrain()
			s.Dial()
		}},
		{"sent 1 bytes while 16777216 are still unread", nil, func(_ server, p peer) {
			p.StopReading()
			p.Send(strings.Repeat("much of it\n", 100)) // 100,000 bytes are more than Limits.HighWater: reading pauses
			p.Send(strings.Repeat("x", 16<<20))
			p.Send("x")
		}},
		{"this server has had 65536 peers, the maximum; use a new server", tcp.Base{}, func(s server, p peer) {
			for {
				s.Dial().Reset()
			}
		}},
		{"198.51.100.1:1024: myriad: handler panicked: as asked", nil, func(_ server, p peer) { p.Send("panic\n") }},
		{"handler panicked: as asked\ngoroutine", nil, func(_ server, p peer) {
			p.Send("panic\n")
			p.Expect("answer")
		}},
		{"1 panics in Closed", lateHandler{}, func(_ server, p peer) { p.Reset() }},
		{"handler panicked: tcptest: concurrent call or call within a handler", nested, func(_ server, p peer) {
			nested.p = p
			p.Send("x")
		}},
	} {
		h := cmp.Or(c.handler, tcp.Lines(&callRecorder{}))
		got := runFailingTest(func(t *fakeTB) {
			s := tcptest.NewServer(t, &tcp.Server{Handler: h})
			c.test(s, s.Dial())
		})
		if !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("failure is %q, expected %q", got, c.want)
		}
	}
	for want, srv := range map[string]*tcp.Server{
		"Server.Handler is nil": {},
		"Server.Processes is 2": {Handler: tcp.Base{}, Processes: 2},
	} {
		if got := runFailingTest(func(t *fakeTB) { tcptest.NewServer(t, srv) }); !strings.Contains(got, want) {
			t.Errorf("failure is %q, expected %q", got, want)
		}
	}
}

// TestPausedFailures checks failures because of paused connections: they contain the cause and
// the numbers, and come early if only the test can change the state.
func TestPausedFailures(t *testing.T) {
	const slow = "paused: 7 bytes of input wait, because the peer has 3000 bytes of output to take, and that was more than Limits.HighWater (2000); " +
		"reading goes on when at most LowWater (1000) are left"
	for _, c := range []struct {
		want  string
		after time.Duration
		h     tcp.Handler
		test  func(*tcptest.Peer)
	}{
		{slow, 800 * time.Millisecond, tcp.Lines(&callRecorder{}), func(p *tcptest.Peer) { p.ExpectClosed(tcp.ErrSlowConsumer) }},
		{slow, 800 * time.Millisecond, tcp.Lines(&callRecorder{}), func(p *tcptest.Peer) { p.Expect("more") }},
		{"paused by its handler (Conn.Pause) or its rates (Limits.ReadRate): 28 bytes of input wait", 5 * time.Second, pausing{}, func(p *tcptest.Peer) { p.ExpectClosed(nil) }},
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			got := runFailingTest(func(t *fakeTB) {
				s := tcptest.NewServer(t, &tcp.Server{Handler: c.h, Limits: tcp.Limits{HighWater: 2000, LowWater: 1000, MaxUnsent: 5000}})
				p := s.Dial()
				p.StopReading()
				p.Send("much 1\nmuch 2\nmuch 3\nmuch 4\n") // the fourth waits
				c.test(p)
			})
			if !strings.Contains(got, c.want) || time.Since(began) != c.after {
				t.Errorf("after %v the failure is %q; expected %q after %v", time.Since(began), got, c.want, c.after)
			}
		})
	}
}

type pausing struct{ tcp.Base }

func (pausing) Opened(c *tcp.Conn) { c.Pause() }

// lateHandler panics in Closed, too late for the close reason.
type lateHandler struct{ tcp.Base }

func (lateHandler) Closed(*tcp.Conn, error) { panic("late") }

type nestedHandler struct {
	tcp.Base
	p *tcptest.Peer
}

func (n *nestedHandler) Received(_ *tcp.Conn, in []byte) int {
	n.p.Send("y")
	return len(in)
}
