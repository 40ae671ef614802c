package enginetest

import (
	"errors"
	"io"
	"log/slog"
	"runtime"
	"sync/atomic"

	"github.com/myriad-go/myriad/internal/await"
	"github.com/myriad-go/myriad/internal/engine"
)

var errPanic = errors.New("the handler's panic")

// blow is what ends a call of a handler instead of its return, and the reason of the connection's
// close.
type blow struct {
	name string
	call func()
	why  error
}

var blows = []blow{
	{"panic", func() { panic(errPanic) }, errPanic},
	{"Goexit", runtime.Goexit, engine.ErrGoexit},
}

var panicCases = append(blowCases(),
	testCase{"Goexit in many handlers while others are served", exitsAmongOthers},
	testCase{"Goexit in handlers of connections that are closed by force", exitsWhenKilled},
	testCase{"Goexit in DialFailed", exitsInDialFailed},
	testCase{"Goexit in Refuse", exitsInRefuse},
)

func blowCases() (all []testCase) {
	for _, blow := range blows {
		for _, c := range []struct {
			call string
			why  error
			set  func(s *Script, blow func(*engine.Conn))
		}{
			{"Opened", blow.why, func(s *Script, blow func(*engine.Conn)) { s.Opened = blow }},
			{"Received", blow.why, func(s *Script, blow func(*engine.Conn)) {
				s.Received = func(c *engine.Conn, in []byte) int {
					blow(c)
					return answerLine(c, in)
				}
			}},
			{"Nudged", blow.why, func(s *Script, blow func(*engine.Conn)) { s.Nudged = blow }},
			{"Ended", blow.why, func(s *Script, blow func(*engine.Conn)) {
				s.Ended = func(c *engine.Conn, _ []byte) { blow(c) }
			}},
			{"Closed", io.EOF, func(s *Script, blow func(*engine.Conn)) {
				s.Closed = func(c *engine.Conn, _ error) { blow(c) }
			}},
		} {
			all = append(all, testCase{blow.name + " in " + c.call, func(b *bench) { testPanic(b, blow, c.why, c.set) }})
		}
		all = append(all, testCase{blow.name + " in Writable and Draining", func(b *bench) { panicsInExtensions(b, blow) }})
	}
	return all
}

func panicsInExtensions(b *bench, blow blow) {
	const owed = 16 << 20 // more than the kernel takes
	s := b.serve(&Script{Received: func(c *engine.Conn, in []byte) int {
		c.Write(pattern(owed))
		return len(in)
	}}, limited(func(l *engine.Limits) { l.MaxUnsent, l.HighWater, l.LowWater = 2*owed, 1000, 1000 }), func(cfg *engine.Config) {
		cfg.Drained = func(*engine.Conn) { blow.call() }
		cfg.Draining = cfg.Drained
	})
	c, drained := s.dial(), s.dial()
	c.smallBuffers()
	s.wantOpened(2)
	c.send("x")
	await.True(b, "it is not paused", func() bool { return s.Counters()[engine.Paused] == 1 })
	c.expectGone()
	s.wantClosed(blow.why)
	done := s.stop(background(b))
	drained.expectGone()
	drained.Close()
	wantStopped(b, s, await.Receive(b, done, "the return of Stop"))
	s.wantClosed(blow.why, blow.why)
}

// testPanic lets one connection panic where set says, while a bystander,
// opened before, goes on. The victim does everything in turn: it opens, sends,
// is nudged, and ends.
func testPanic(b *bench, blow blow, why error, set func(s *Script, blow func(*engine.Conn))) {
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
	s := b.serve(script)
	bystander := s.dial()
	bystander.exchange("before\n")
	armed.Store(true)

	victim := s.dial()
	r := s.wantOpened(2)[1]
	_, _ = victim.Write([]byte("half a message"))
	_ = r.Nudge()
	_ = victim.CloseWrite()
	victim.expectGone()
	s.wantClosed(why)

	bystander.exchange("after\n")
	await.True(b, "the panic is not logged with its stack", func() bool {
		return s.log.count(slog.LevelError, "stack", "enginetest.testPanic") == 1
	})
	if n := s.log.count(slog.LevelError, "panic", blow.why.Error()); n != 1 {
		b.Errorf("logged the panic's value %d times, want once", n)
	}
	if n := s.Counters()[engine.Panics]; n != 1 {
		b.Errorf("counted %d panics, want 1", n)
	}
}
