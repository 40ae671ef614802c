package enginetest

import (
	"context"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

var backpressureCases = []testCase{
	{"largest debtors give way to MaxBuffered", testBufferBudget},
	{"ShutdownRate when the connections end", func(b *testEnv) { testShutdownRate(b, false) }},
	{"ShutdownRate when its context ends", func(b *testEnv) { testShutdownRate(b, true) }},
}

// testBufferBudget checks that connections with much unsent output are closed, and that a connection with little is
// not.
func testBufferBudget(b *testEnv) {
	const much, n = 2 << 20, 4
	s := b.startServer(&Script{Received: func(c *engine.Conn, in []byte) int {
		if in[0] != 'g' {
			return answerLine(c, in)
		}
		for range 4 * much / (8 << 10) {
			c.Write(make([]byte, 8<<10)) // too short to be sent directly
		}
		return len(in)
	}}, limited(func(l *engine.Limits) { l.MaxUnsent, l.MaxBuffered = 8*much, much }))
	small := s.dial()
	small.Send("half a mess")
	s.wantBytesIn(11)
	for range n {
		c := s.dial()
		c.shrinkSocketBuffers()
		c.Send("g")
	}
	testkit.WaitFor(b, "the budget is not kept", func() bool {
		return len(s.reasons()) > 0 && s.Counters()[engine.Buffered] <= much
	})
	for _, reason := range s.reasons() {
		if reason != engine.ErrOverBudget {
			b.Errorf("closed for %v, want %v", reason, engine.ErrOverBudget)
		}
	}
	testkit.WaitFor(b, "not as many are counted as were closed", func() bool { // a worker may be calling Closed
		return s.Counters().ClosedBy(engine.ClosedBudget) == int64(len(s.reasons()))
	})
	small.Send("age\n")
	small.Expect("half a message\n")
}

// testShutdownRate uses a rate so low that draining would take longer than patience. Stop must return when all
// connections have ended, or when its context ends.
func testShutdownRate(b *testEnv, cutOff bool) {
	const n = int(patience/time.Second) + 20
	s := b.startServer(lines(), limited(func(l *engine.Limits) { l.ShutdownRate = 1 }))
	clients := s.dialMany(n)
	s.wantOpened(n)
	ctx, cancel := context.WithCancel(background(b))
	done := s.stop(ctx)
	testkit.WaitFor(b, "none is told", func() bool { return s.Counters()[engine.Closing] > 0 })
	if s.Counters()[engine.Closing] == int64(n) {
		b.Errorf("all of %d were told at once, at a rate of 1", n)
	}
	if cutOff {
		cancel()
	} else {
		for _, c := range clients {
			c.Close()
		}
	}
	if err := testkit.Receive(b, done, "the return of Stop"); (err != nil) != cutOff {
		b.Errorf("Stop: %v; connections were cut off: %v", err, cutOff)
	}
	s.awaitClosed(n)
	cancel()
}
