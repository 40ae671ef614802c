package enginetest

import (
	"io"
	"sync/atomic"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

var outputCases = []testCase{
	{"reading pauses for a client that does not read", testReadingPausesAtHighWater},
	{"answers owed when the client has half-closed", func(b *testEnv) { testOutputOwedAtEnd(b, false) }},
}

func testReadingPausesAtHighWater(b *testEnv) {
	const total, unsent = 8 << 20, 256 << 10
	var most atomic.Int64
	s := b.startServer(&Script{Received: func(c *engine.Conn, in []byte) int {
		c.Write(in)
		most.Store(max(most.Load(), int64(c.UnsentAndDroppedBytes())))
		return len(in)
	}}, limited(func(l *engine.Limits) { l.MaxUnsent = unsent }))
	c := s.dial()
	c.shrinkSocketBuffers()
	data := testPattern(total)
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(data)
		sent <- err
	}()
	owes := func() int64 { n := s.Counters(); return n[engine.BytesIn] - n[engine.BytesOut] }
	if s.Loops() > 0 {
		// A loop keeps reading until half of the limit is unsent.
		testkit.WaitFor(b, "does not read on until it owes half of MaxUnsent", func() bool { return owes() > unsent/2 })
	}
	s.dial().exchange("others go on")
	c.Expect(string(data))
	if err := testkit.Receive(b, sent, "the client's write"); err != nil {
		b.Errorf("client: write: %v", err)
	}
	if got := most.Load(); got > unsent {
		b.Errorf("%d bytes were pending, MaxUnsent is %d", got, unsent)
	}
	c.CloseWrite()
	c.ExpectEOF("")
	s.wantClosed(io.EOF)
}

// testOutputOwedAtEnd half-closes a client, or stops the engine, while almost all of a large answer is unsent.
func testOutputOwedAtEnd(b *testEnv, stop bool) {
	const owed = 8 << 20
	answer := testPattern(owed)
	s := b.startServer(answerWith(answer), limited(func(l *engine.Limits) { l.MaxUnsent = 4 * owed }))
	c, idle := s.dial(), s.dial()
	c.shrinkSocketBuffers()
	c.Send("g")
	s.wantBytesIn(1)
	s.wantOpened(2)
	if !stop {
		c.CloseWrite()
		if s.Loops() > 0 {
			s.wantEndedCalls(1)
		}
		c.ExpectEOF(string(answer))
		s.wantClosed(io.EOF)
		return
	}
	wantStopped := s.stopMeanwhile(b)
	idle.ExpectEOF("") // Stop is under way
	idle.Close()
	c.ExpectEOF(string(answer))
	c.Close()
	wantStopped()
	s.wantClosed(engine.ErrServerClosed, engine.ErrServerClosed)
}
