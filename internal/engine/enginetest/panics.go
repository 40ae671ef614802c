package enginetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

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

var blows = []exitKind{
	{"panic", func() { panic(errPanic) }, errPanic},
	{"Goexit", runtime.Goexit, engine.ErrGoexit},
}

var panicCases = append(panicTestCases(),
	testCase{"Goexit in many handlers while others are served", testGoexitAmongOtherConns},
	testCase{"Goexit in handlers of connections that are closed by force", testGoexitDuringKill},
	testCase{"Goexit in DialFailed", testGoexitInDialFailed},
)

func panicTestCases() (all []testCase) {
	for _, blow := range blows {
		for _, c := range []struct {
			call   string
			reason error
			set    func(s *Script, blow func(*engine.Conn))
		}{
			{"Opened", blow.reason, func(s *Script, blow func(*engine.Conn)) { s.Opened = blow }},
			{"Received", blow.reason, func(s *Script, blow func(*engine.Conn)) {
				s.Received = func(c *engine.Conn, in []byte) int {
					blow(c)
					return answerLine(c, in)
				}
			}},
			{"Nudged", blow.reason, func(s *Script, blow func(*engine.Conn)) { s.Nudged = blow }},
			{"Ended", blow.reason, func(s *Script, blow func(*engine.Conn)) {
				s.Ended = func(c *engine.Conn, _ []byte) { blow(c) }
			}},
			{"Closed", io.EOF, func(s *Script, blow func(*engine.Conn)) {
				s.Closed = func(c *engine.Conn, _ error) { blow(c) }
			}},
		} {
			all = append(all, testCase{blow.name + " in " + c.call, func(b *testEnv) { testPanic(b, blow, c.reason, c.set) }})
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
	done := s.stop(background(b))
	drained.ExpectClosed()
	drained.Close()
	wantStopped(b, s, testkit.Receive(b, done, "the return of Stop"))
	s.wantClosed(blow.reason, blow.reason)
}

// testPanic makes the handler of one connection panic in the call that set selects. Another connection must keep
// working. The victim opens, sends, is nudged, and ends.
func testPanic(b *testEnv, blow exitKind, reason error, set func(s *Script, blow func(*engine.Conn))) {
	b.Helper()
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

	victim := s.dial()
	r := s.wantOpened(2)[1]
	_, _ = victim.Write([]byte("half a message"))
	_ = r.Nudge()
	victim.CloseWrite()
	victim.ExpectClosed()
	s.wantClosed(reason)

	bystander.exchange("after\n")
	testkit.WaitFor(b, "the panic is not logged with its stack", func() bool {
		return s.log.count(slog.LevelError, "stack", "enginetest.testPanic") == 1
	})
	if n := s.log.count(slog.LevelError, "panic", blow.reason.Error()); n != 1 {
		b.Errorf("logged the panic's value %d times, want once", n)
	}
	if n := s.Counters()[engine.Panics]; n != 1 {
		b.Errorf("counted %d panics, want 1", n)
	}
}

// newExitingScript returns a script that answers lines, and calls exit in Received, in Do and in Closed, as its clients
// ask for.
func newExitingScript(exit func()) *Script {
	return &Script{
		Received: func(c *engine.Conn, in []byte) int {
			switch line, _, _ := strings.Cut(string(in), "\n"); line {
			case "exit in Received":
				exit()
			case "exit in Closed":
				c.SetValue(line)
			case "exit in Closed and Received":
				c.SetValue("exit in Closed")
				exit()
			case "exit in Do":
				_ = c.Ref().Do(func(*engine.Conn) { exit() })
				_ = c.Ref().Send([]byte("never sent\n"))
			}
			return answerLine(c, in)
		},
		Closed: func(c *engine.Conn, _ error) {
			if c.Value() == "exit in Closed" {
				exit()
			}
		},
	}
}

// testGoexitAmongOtherConns has many connections whose handlers call Goexit, often several in a
// turn, while others exchange messages.
func testGoexitAmongOtherConns(b *testEnv) {
	const victims, atOnce, bystanders = 150, 30, 4
	var exits atomic.Int64
	s := b.startServer(newExitingScript(func() {
		exits.Add(1)
		runtime.Goexit()
	}))
	calls := []string{"Received", "Do", "Closed", "Closed and Received"}

	var others, all sync.WaitGroup
	var stop atomic.Bool
	for i := range bystanders {
		c := s.dial()
		others.Go(func() {
			defer c.Close()
			for n := 0; !stop.Load(); n++ {
				line := fmt.Sprintf("bystander %d asks %d times\n", i, n)
				if err := errors.Join(c.tryWrite(line+line), c.tryExpect(line+line)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	slots := make(chan struct{}, atOnce)
	for i := range victims {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			b.checkNoError(exchangeWithVictim(b, s, calls[i%len(calls)]))
		})
	}
	all.Wait()
	stop.Store(true)
	others.Wait()

	whys := s.awaitClosed(victims + bystanders)
	testkit.WaitFor(b, "connections are left open", func() bool { return s.Counters()[engine.Open] == 0 })
	n := 0
	for _, reason := range whys {
		switch {
		case errors.Is(reason, engine.ErrGoexit):
			n++
		case reason != io.EOF && !errors.Is(reason, syscall.ECONNRESET):
			b.Errorf("closed for %v", reason)
		}
	}
	if least := victims / len(calls) * 2; n < least {
		b.Errorf("closed %d connections for %v, want at least %d", n, engine.ErrGoexit, least)
	}
	if n := s.Counters(); n[engine.Panics] != exits.Load() || n[engine.Buffered] != 0 {
		b.Errorf("counted %d panics and %d bytes in buffers, want %d and 0", n[engine.Panics], n[engine.Buffered], exits.Load())
	}
}

// exchangeWithVictim makes a handler call Goexit in a call.
func exchangeWithVictim(b *testEnv, s *server, call string) error {
	c, err := tryDial(b, s.Addr().String())
	if err != nil {
		return err
	}
	defer c.Close()
	_, _ = c.Write([]byte("hello\nexit in " + call + "\n"))
	c.CloseWrite()
	got, err := io.ReadAll(c)
	if err != nil && !testkit.IsReset(err) {
		return fmt.Errorf("victim of %s: got %q, then %w; want the end", call, got, err)
	}
	return nil
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
	if got := s.awaitClosed(n); slices.ContainsFunc(got, func(err error) bool { return err != engine.ErrServerClosed }) {
		b.Errorf("closed for %v", got)
	}
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
