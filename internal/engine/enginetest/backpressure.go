package enginetest

import (
	"bytes"
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

var backpressureCases = []testCase{
	{"Writable streams without end of input", testStreamingToSlowReader},
	{"largest debtors give way to MaxBuffered", testBufferBudget},
	{"ShutdownRate spreads the end", testShutdownRate},
	{"ShutdownRate and the end of patience", testShutdownRateCutOff},
}

// testStreamingToSlowReader makes handlers write much more than MaxUnsent, as far as allowed, and
// continue in Writable, to a fast and to a slow reader.
func testStreamingToSlowReader(b *testEnv) {
	const pieces, size = 300, 20 << 10
	piece := testPattern(size)
	stream := func(c *engine.Conn) {
		n, _ := c.Value().(int)
		for ; n < pieces && !c.IsPaused(); n++ {
			if _, err := c.Write(piece); err != nil {
				b.Errorf("Write: %v", err)
			}
		}
		c.SetValue(n)
	}
	var calls atomic.Int64
	s := b.startServer(&Script{Received: func(c *engine.Conn, in []byte) int {
		stream(c)
		return len(in)
	}}, limited(func(l *engine.Limits) { l.MaxUnsent, l.HighWater, l.LowWater = 256<<10, 100<<10, 10<<10 }),
		func(cfg *engine.Config) {
			cfg.Drained = func(c *engine.Conn) {
				if p := c.UnsentAndDroppedBytes(); p > 100<<10 {
					b.Errorf("Writable while %d bytes are owed", p)
				}
				calls.Add(1)
				stream(c)
			}
		})
	late, quick := s.dial(), s.dial()
	late.shrinkSocketBuffers()
	late.Send("go")
	quick.Send("go")
	quick.Expect(string(bytes.Repeat(piece, pieces)))
	testkit.WaitFor(b, "the late one is not paused", func() bool { return s.Counters()[engine.Paused] == 1 })
	late.Expect(string(bytes.Repeat(piece, pieces)))
	if calls.Load() == 0 {
		b.Error("Writable was not called")
	}
	for _, c := range []*client{late, quick} {
		c.CloseWrite()
		c.ExpectEOF("")
		c.Close()
	}
	s.wantClosed(io.EOF, io.EOF)
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

// testShutdownRate stops with 150 connections at a limited rate.
func testShutdownRate(b *testEnv) {
	s, clients := b.startServerWithClients(150, 1000)
	var gone sync.WaitGroup
	defer gone.Wait()
	for _, c := range clients {
		gone.Go(func() {
			io.Copy(io.Discard, c)
			c.Close()
		})
	}
	start := time.Now()
	wantStopped(b, s, testkit.Receive(b, s.stop(background(b)), "the return of Stop"))
	if took := time.Since(start); took < 90*time.Millisecond {
		b.Errorf("%d connections were told to end within %v, at a rate of 1000", len(clients), took)
	}
}

func (b *testEnv) startServerWithClients(n, rate int) (s *server, clients []*client) {
	s = b.startServer(lines(), limited(func(l *engine.Limits) { l.ShutdownRate = rate }))
	clients = s.dialMany(n)
	s.wantOpened(n)
	return s, clients
}

// testShutdownRateCutOff uses a rate so low that draining would take hours.
func testShutdownRateCutOff(b *testEnv) {
	s, clients := b.startServerWithClients(60, 1)
	ctx, cancel := context.WithCancel(background(b))
	done := s.stop(ctx)
	testkit.WaitFor(b, "none is told", func() bool { return s.Counters()[engine.Closing] > 0 })
	open := len(clients) - int(s.Counters()[engine.Closing])
	if open == 0 {
		b.Errorf("all of %d were told at once, at a rate of 1", len(clients))
	}
	cancel()
	if err := testkit.Receive(b, done, "the return of Stop"); err == nil {
		b.Error("Stop says nothing of those that were cut off")
	}
	s.awaitClosed(len(clients))
}
