package enginetest

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

var errPanic = errors.New("the handler's panic")

// exitKind ends a handler call by a panic or Goexit; reason is the expected close reason.
type exitKind struct {
	name   string
	call   func()
	reason error
}

var (
	panics = exitKind{"panic", func() { panic(errPanic) }, errPanic}
	exits  = exitKind{"Goexit", runtime.Goexit, engine.ErrGoexit}
)

var panicCases = append(panicTestCases(),
	testCase{"Goexit in handlers of connections that are closed by force", testGoexitDuringKill},
	testCase{"Goexit in DialFailed", testGoexitInDialFailed},
)

func panicTestCases() (all []testCase) {
	received := func(s *Script, blow func(*engine.Conn)) {
		s.Received = func(c *engine.Conn, in []byte) int {
			blow(c)
			return answerLine(c, in)
		}
	}
	for _, blow := range []exitKind{panics, exits} {
		for _, c := range []struct {
			call   string
			reason error
			times  int // for each victim
			set    func(s *Script, blow func(*engine.Conn))
		}{
			{"Opened", blow.reason, 1, func(s *Script, blow func(*engine.Conn)) { s.Opened = blow }},
			{"Received", blow.reason, 1, received},
			{"Nudged", blow.reason, 1, func(s *Script, blow func(*engine.Conn)) { s.Nudged = blow }},
			{"Do", blow.reason, 1, func(s *Script, blow func(*engine.Conn)) {
				s.Nudged = func(c *engine.Conn) { _ = c.Ref().Do(blow) }
			}},
			{"Ended", blow.reason, 1, func(s *Script, blow func(*engine.Conn)) {
				s.Ended = func(c *engine.Conn, _ []byte) { blow(c) }
			}},
			{"Closed", io.EOF, 1, func(s *Script, blow func(*engine.Conn)) {
				s.Closed = func(c *engine.Conn, _ error) { blow(c) }
			}},
			{"Received and Closed", blow.reason, 2, func(s *Script, blow func(*engine.Conn)) {
				received(s, blow)
				s.Closed = func(c *engine.Conn, _ error) { blow(c) }
			}},
		} {
			all = append(all, testCase{blow.name + " in " + c.call, func(b *testEnv) { testPanic(b, blow, c.reason, c.times, c.set) }})
		}
		all = append(all,
			testCase{blow.name + " in Writable and Draining", func(b *testEnv) { testPanicsInOptionalCalls(b, blow) }},
			testCase{blow.name + " in Refuse", func(b *testEnv) { testPanicInRefusalReply(b, blow) }})
	}
	return all
}

func testPanicsInOptionalCalls(b *testEnv, blow exitKind) {
	const owed = 16 << 20 // more than the kernel takes
	s := b.startServer(answerWith(testPattern(owed)), limited(func(l *engine.Limits) { l.MaxUnsent, l.HighWater, l.LowWater = 2*owed, 1000, 1000 }), func(cfg *engine.Config) {
		cfg.Drained = func(*engine.Conn) { blow.call() }
		cfg.Draining = cfg.Drained
	})
	c, drained := s.dial(), s.dial()
	c.shrinkSocketBuffers()
	s.wantOpened(2)
	c.Send("x")
	testkit.WaitFor(b, "it is not paused", func() bool { return s.Counters()[engine.Paused] == 1 })
	c.ExpectClosed()
	s.wantClosed(blow.reason)
	wantStopped := s.stopMeanwhile(b)
	drained.ExpectClosed()
	drained.Close()
	wantStopped()
	s.wantClosed(blow.reason, blow.reason)
}

// testPanic makes the handlers of some connections panic, at about the same time, in the call that set selects. Another
// connection must keep working. The victims open, are nudged, send, and end.
func testPanic(b *testEnv, blow exitKind, reason error, times int, set func(s *Script, blow func(*engine.Conn))) {
	b.Helper()
	const victims = 10
	var armed atomic.Bool
	script := &Script{Received: answerLine}
	set(script, func(c *engine.Conn) {
		if armed.Load() && c.Value() == nil {
			blow.call()
		}
	})
	first := script.Opened
	script.Opened = func(c *engine.Conn) {
		if !armed.Load() {
			c.SetValue("bystander")
		} else if first != nil {
			first(c)
		}
	}
	s := b.startServer(script)
	bystander := s.dial()
	bystander.exchange("before\n")
	armed.Store(true)

	clients := s.dialMany(victims)
	for _, r := range s.wantOpened(1 + victims)[1:] {
		_ = r.Nudge()
	}
	for _, victim := range clients {
		_, _ = victim.Write([]byte("half a message"))
		_ = victim.Conn.Conn.(*net.TCPConn).CloseWrite()
	}
	bystander.exchange("meanwhile\n")
	for _, victim := range clients {
		victim.ExpectClosed()
	}
	s.wantClosed(slices.Repeat([]error{reason}, victims)...)

	bystander.exchange("after\n")
	testkit.WaitFor(b, "the panics are not logged with their stacks", func() bool {
		return s.log.count(slog.LevelError, "stack", "enginetest.testPanic") == times*victims
	})
	if n := s.log.count(slog.LevelError, "panic", blow.reason.Error()); n != times*victims {
		b.Errorf("logged the panic's value %d times, want %d", n, times*victims)
	}
	if n := s.Counters()[engine.Panics]; n != int64(times*victims) {
		b.Errorf("counted %d panics, want %d", n, times*victims)
	}
	testkit.WaitFor(b, "buffers are still held", func() bool { return s.Counters()[engine.Buffered] == 0 })
}

// testGoexitDuringKill calls Goexit in Closed of each connection that Stop closes by force.
func testGoexitDuringKill(b *testEnv) {
	const n = 30
	s := b.startServer(&Script{
		Received: answerLine,
		Closed:   func(*engine.Conn, error) { runtime.Goexit() },
	})
	for _, c := range s.dialMany(n) {
		c.exchange("on\n")
		c.Send("half a message")
	}
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	if err := testkit.Receive(b, s.stop(ctx), "the return of Stop"); err == nil {
		b.Error("Stop says nothing of the connections that it has closed by force")
	}
	s.wantClosed(slices.Repeat([]error{engine.ErrServerClosed}, n)...)
}

func testGoexitInDialFailed(b *testEnv) {
	nobody := netip.MustParseAddrPort("127.0.0.1:1") // a free ephemeral port may be taken meanwhile
	target := echoServer(b)
	s := b.startServer(&Script{DialFailed: func(error) { runtime.Goexit() }}, dialsOnly)
	const n = 20
	b.requireNoError(s.Dial(engine.DialRequest{Target: nobody, Count: n}))
	b.requireNoError(s.Dial(engine.DialRequest{Target: target, Count: n}))
	s.awaitDialFailed(n)
	s.wantOpened(n)
	testkit.WaitFor(b, "Goexit in DialFailed is not counted", func() bool { return s.Counters()[engine.Panics] == n })
}

func testPanicInRefusalReply(b *testEnv, blow exitKind) {
	s := b.startServer(lines(), limited(func(l *engine.Limits) { l.MaxConns = 1 }), func(cfg *engine.Config) {
		cfg.RefusalReply = func(netip.AddrPort, error) []byte {
			blow.call()
			return nil
		}
	})
	first := s.dial()
	first.exchange("first\n")
	for range 3 {
		s.dial().ExpectClosed()
	}
	s.wantRefused(engine.RefusedFull, 3)
	if n := s.Counters()[engine.Panics]; n != 3 {
		b.Errorf("counted %d panics, want 3", n)
	}
	first.exchange("goes on\n")
	first.Close()
	s.wantClosed(io.EOF)
	s.wantAccepting()
}
