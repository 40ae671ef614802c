package enginetest

import (
	"errors"
	"io"
	"log/slog"
	"sync/atomic"

	"github.com/myriad-go/myriad/internal/await"
	"github.com/myriad-go/myriad/internal/engine"
)

var errPanic = errors.New("the handler's panic")

var panicCases = []testCase{
	{"panic in Opened", func(b *bench) {
		testPanic(b, errPanic, func(s *Script, blow func(*engine.Conn)) { s.Opened = blow })
	}},
	{"panic in Received", func(b *bench) {
		testPanic(b, errPanic, func(s *Script, blow func(*engine.Conn)) {
			s.Received = func(c *engine.Conn, in []byte) int {
				blow(c)
				return answerLine(c, in)
			}
		})
	}},
	{"panic in Nudged", func(b *bench) {
		testPanic(b, errPanic, func(s *Script, blow func(*engine.Conn)) { s.Nudged = blow })
	}},
	{"panic in Ended", func(b *bench) {
		testPanic(b, errPanic, func(s *Script, blow func(*engine.Conn)) {
			s.Ended = func(c *engine.Conn, _ []byte) { blow(c) }
		})
	}},
	{"panic in Closed", func(b *bench) {
		testPanic(b, io.EOF, func(s *Script, blow func(*engine.Conn)) {
			s.Closed = func(c *engine.Conn, _ error) { blow(c) }
		})
	}},
	{"panic in Writable and Draining", panicsInExtensions},
}

func panicsInExtensions(b *bench) {
	const owed = 16 << 20 // more than the kernel takes
	s := b.serve(&Script{Received: func(c *engine.Conn, in []byte) int {
		c.Write(pattern(owed))
		return len(in)
	}}, limited(func(l *engine.Limits) { l.MaxUnsent, l.HighWater, l.LowWater = 2*owed, 1000, 1000 }), func(cfg *engine.Config) {
		cfg.Drained = func(*engine.Conn) { panic(errPanic) }
		cfg.Draining = cfg.Drained
	})
	c, drained := s.dial(), s.dial()
	c.smallBuffers()
	s.wantOpened(2)
	c.send("x")
	await.True(b, "it is not paused", func() bool { return s.Counters()[engine.Paused] == 1 })
	c.expectGone()
	s.wantClosed(errPanic)
	done := s.stop(background(b))
	drained.expectGone()
	drained.Close()
	wantStopped(b, s, await.Receive(b, done, "the return of Stop"))
	s.wantClosed(errPanic, errPanic)
}

// testPanic lets one connection panic where set says, while a bystander,
// opened before, goes on. The victim does everything in turn: it opens, sends,
// is nudged, and ends.
func testPanic(b *bench, why error, set func(s *Script, blow func(*engine.Conn))) {
	b.Helper()
	var armed atomic.Bool
	blow := func(c *engine.Conn) {
		if armed.Load() && c.Value() == nil {
			panic(errPanic)
		}
	}
	script := &Script{Received: answerLine}
	set(script, blow)
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
	if n := s.log.count(slog.LevelError, "panic", errPanic.Error()); n != 1 {
		b.Errorf("logged the panic's value %d times, want once", n)
	}
	if n := s.Counters()[engine.Panics]; n != 1 {
		b.Errorf("counted %d panics, want 1", n)
	}
}
