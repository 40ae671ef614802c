package enginetest

import (
	"errors"
	"io"
	"sync/atomic"

	"github.com/myriad-go/myriad/internal/engine"
)

var outputCases = []testCase{
	{"reading pauses for a client that does not read", readingPauses},
	{"answers owed when the client has half-closed", owedAtHalfClose},
	{"answer at the end of input", answerAtEnd},
	{"client that reads too slowly", slowConsumer},
}

func readingPauses(b *bench) {
	const total, unsent = 8 << 20, 256 << 10
	var most atomic.Int64
	s := b.serve(&Script{Received: func(c *engine.Conn, in []byte) int {
		c.Write(in)
		most.Store(max(most.Load(), int64(c.Pending())))
		return len(in)
	}}, limited(func(l *engine.Limits) { l.MaxUnsent = unsent }))
	c := s.dial()
	c.smallBuffers()
	data := pattern(total)
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(data)
		sent <- err
	}()
	owes := func() int64 { n := s.Counters(); return n[engine.BytesIn] - n[engine.BytesOut] }
	if s.Loops() > 0 {
		// A loop goes on reading until it owes half of the bound.
		eventually(b, "does not read on until it owes half of MaxUnsent", func() bool { return owes() > unsent/2 })
	}
	s.dial().exchange("others go on")
	c.expect(string(data))
	if err := receive(b, sent, "the client's write"); err != nil {
		b.Errorf("client: write: %v", err)
	}
	if got := most.Load(); got > unsent {
		b.Errorf("%d bytes were pending, MaxUnsent is %d", got, unsent)
	}
	c.endSending()
	c.expectEnd("")
	s.wantClosed(io.EOF)
}

func owedAtHalfClose(b *bench) {
	const owed = 8 << 20
	answer := pattern(owed)
	s := b.serve(&Script{Received: func(c *engine.Conn, in []byte) int {
		c.Write(answer)
		return len(in)
	}}, limited(func(l *engine.Limits) { l.MaxUnsent = 4 * owed }))
	c := s.dial()
	c.smallBuffers()
	c.send("g")
	s.wantBytesIn(1)
	c.endSending()
	if s.Loops() > 0 {
		s.wantEnded(1) // while almost all is owed
	}
	c.expectEnd(string(answer))
	s.wantClosed(io.EOF)
}

func answerAtEnd(b *bench) {
	s := b.serve(&Script{
		Received: func(*engine.Conn, []byte) int { return 0 },
		Ended: func(c *engine.Conn, in []byte) {
			c.Write(in)
			c.WriteString(" was all")
			if err := c.Ref().Send([]byte(", by mail")); err != nil {
				b.Errorf("Send in Ended: %v", err)
			}
		},
	})
	c := s.dial()
	c.send("that")
	c.endSending()
	c.expectEnd("that was all, by mail")
	s.wantClosed(io.EOF)
}

func slowConsumer(b *bench) {
	const unsent = 64 << 10
	errs := make(chan error, 1)
	s := b.serve(&Script{Received: func(c *engine.Conn, in []byte) int {
		for range 3 { // whatever the kernel might take meanwhile
			if _, err := c.Write(make([]byte, unsent/2)); err != nil {
				errs <- err
			}
		}
		return len(in)
	}}, limited(func(l *engine.Limits) { l.MaxUnsent = unsent }))
	c := s.dial()
	c.send("x")
	if err := receive(b, errs, "a Write that fails"); !errors.Is(err, engine.ErrSlowConsumer) {
		b.Errorf("Write over MaxUnsent: %v, want %v", err, engine.ErrSlowConsumer)
	}
	c.expectGone()
	s.wantClosed(engine.ErrSlowConsumer)
}
