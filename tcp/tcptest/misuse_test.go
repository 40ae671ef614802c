package tcptest_test

import (
	"crypto/tls"
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
	fakes := func(t *fakeTB) (*tcptest.Server, *tcptest.Peer) {
		s := tcptest.NewServer(t, &tcp.Server{Handler: tcp.Lines(&callRecorder{})})
		return s, s.Dial()
	}
	for _, c := range []struct {
		want string
		test func(*fakeTB)
	}{
		{"Server.Handler is nil", func(t *fakeTB) { tcptest.NewServer(t, &tcp.Server{}) }},
		{"Server.TLSConfig is set", func(t *fakeTB) {
			tcptest.NewServer(t, &tcp.Server{Handler: tcp.Base{}, TLSConfig: &tls.Config{}})
		}},
		{"Server.Processes is 2", func(t *fakeTB) {
			tcptest.NewServer(t, &tcp.Server{Handler: tcp.Base{}, Processes: 2})
		}},
		{`output is "one"; expected "two"; the connection is open`, func(t *fakeTB) {
			_, p := fakes(t)
			p.Send("one\n")
			p.Expect("two")
		}},
		{`output is "bye\n"; expected "bye\nmore"; the connection has closed: myriad: server is shutting down`, func(t *fakeTB) {
			s, p := fakes(t)
			s.Drain()
			p.Expect("bye\nmore")
		}},
		{"the connection has closed: EOF; expected it to be closed with: <nil>", func(t *fakeTB) {
			_, p := fakes(t)
			p.CloseWrite()
			p.ExpectClosed(nil)
		}},
		{"broken pipe", func(t *fakeTB) {
			_, p := fakes(t)
			p.Reset()
			p.Send("x")
		}},
		{"Take(1); expected 0 or more, after StopReading", func(t *fakeTB) {
			_, p := fakes(t)
			p.Take(1)
		}},
		{"Take(-1)", func(t *fakeTB) {
			_, p := fakes(t)
			p.StopReading()
			p.Take(-1)
		}},
		{"Advance by -1ns; expected 0 to 8760h0m0s", func(t *fakeTB) {
			s, _ := fakes(t)
			s.Advance(-1)
		}},
		{"Advance by 8760h0m0s; expected 0 to 8759h59m59s", func(t *fakeTB) {
			s, _ := fakes(t)
			s.Advance(time.Second)
			s.Advance(365 * 24 * time.Hour)
		}},
		{"dial: connection refused", func(t *fakeTB) {
			s, _ := fakes(t)
			s.Drain()
			s.Dial()
		}},
		{"16777216 bytes wait already", func(t *fakeTB) {
			_, p := fakes(t)
			p.StopReading()
			p.Send(strings.Repeat("much of it\n", 100)) // 100,000 bytes are more than Limits.HighWater: reading pauses
			p.Send(strings.Repeat("x", 16<<20))
			p.Send("x")
		}},
		{"198.51.100.1:1024: myriad: handler panicked: as asked", func(t *fakeTB) {
			_, p := fakes(t)
			p.Send("panic\n")
		}},
		{"handler panicked: as asked\ngoroutine", func(t *fakeTB) {
			_, p := fakes(t)
			p.Send("panic\n")
			p.Expect("answer")
		}},
		{"1 panics in Closed", func(t *fakeTB) {
			s := tcptest.NewServer(t, &tcp.Server{Handler: lateHandler{}})
			s.Dial().Reset()
		}},
		{"handler panicked: tcptest: concurrent call or call within a handler", func(t *fakeTB) {
			h := &nested{}
			s := tcptest.NewServer(t, &tcp.Server{Handler: h})
			h.p = s.Dial()
			h.p.Send("x")
		}},
	} {
		if got := runFailingTest(c.test); !strings.Contains(got, c.want) {
			t.Errorf("failure is %q, expected %q", got, c.want)
		}
	}
	if got := runFailingTest(func(t *fakeTB) { fakes(t) }); got != "" {
		t.Errorf("a test with nothing wrong fails: %s", got)
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
		{"paused by its handler (Conn.Pause): 28 bytes of input wait", 5 * time.Second, pausing{}, func(p *tcptest.Peer) { p.ExpectClosed(nil) }},
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

// pausing is a handler that pauses reading.
type pausing struct{ tcp.Base }

func (pausing) Opened(c *tcp.Conn) { c.Pause() }

// lateHandler panics in Closed, too late for the close reason.
type lateHandler struct{ tcp.Base }

func (lateHandler) Closed(*tcp.Conn, error) { panic("late") }

// nested is a handler that uses its own test.
type nested struct {
	tcp.Base
	p *tcptest.Peer
}

func (n *nested) Received(_ *tcp.Conn, in []byte) int {
	n.p.Send("y")
	return len(in)
}

// TestDialBound dials the maximum number of peers.
func TestDialBound(t *testing.T) {
	got := runFailingTest(func(t *fakeTB) {
		s := tcptest.NewServer(t, &tcp.Server{Handler: tcp.Base{}})
		for {
			s.Dial().Reset()
		}
	})
	if !strings.Contains(got, "there were 65536 peers; expected no more from one server") {
		t.Errorf("failure is %q", got)
	}
}
