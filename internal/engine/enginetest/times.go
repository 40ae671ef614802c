package enginetest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// timeCases are those of limits of time. Each has neighbours that do nothing
// wrong: they go on.
var timeCases = []testCase{
	{"FirstByteTimeout", firstByte},
	{"MessageTimeout of a message that drips in", messageDrips},
	{"IdleTimeout", idle},
	{"WriteTimeout", writeTimes},
	{"WriteTimeout of a file", fileTimes},
	{"times of a peer that waits for a slow handler", slowHandler},
	{"times of a peer that is not read from", pausedPeer},
	{"times of a peer that talks while it reads slowly", talksWhileOwed},
	{"times of a peer to whom nobody listens", unheardPeer},
	{"HandlerTime", handlerTime},
	{"heartbeats", heartbeats},
	{"heartbeats that are not answered", heartbeatsMissed},
	{"panic in a heartbeat", heartbeatPanics},
	{"accept rate", acceptRate},
	{"PROXY headers that are wrong, missing or late", proxyRefused},
	{"part of a TLS record has a time and counts as memory", tlsPart},
	{"TLS handshakes that stall", tlsStalls},
	{"TLS records that drip in", tlsDrips},
}

// short is what the limits of these cases are.
const short = 400 * time.Millisecond

// talk has a client exchange lines until stop is closed.
func (c *client) talk(b *bench, line string, every time.Duration) (stop func()) {
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			if _, err := io.WriteString(c, line); err != nil {
				b.Errorf("a neighbour: %v", err)
				return
			}
			if err := c.tryExpect(line); err != nil {
				b.Errorf("a neighbour: %v", err)
				return
			}
			select {
			case <-end:
				return
			case <-time.After(every):
			}
		}
	}()
	return func() { close(end); <-done }
}

// wantCause checks that n connections are counted as closed for a cause.
func (s *server) wantCause(cause engine.Cause, n int64) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("not %d connections are counted as closed for cause %d", n, cause), func() bool {
		return s.Counters().Closed(cause) >= n
	})
	if got := s.Counters().Closed(cause); got != n {
		s.t.Errorf("%d connections are counted as closed for cause %d, want %d", got, cause, n)
	}
}

func firstByte(b *bench) {
	s := b.serve(lines(), limited(func(l *engine.Limits) { l.FirstByteTimeout = short }))
	talker := s.dial()
	talker.exchange("hello\n")
	start := time.Now()
	silent := s.dial()
	silent.expectEnd("")
	if took := time.Since(start); took < short {
		b.Errorf("closed after %v, which is less than the limit", took)
	}
	silent.Close()
	s.wantClosed(engine.ErrFirstByteTimeout)
	s.wantCause(engine.ClosedFirstByte, 1)
	talker.exchange("I have been silent since\n")
}

func messageDrips(b *bench) {
	s := b.serve(lines(), limited(func(l *engine.Limits) { l.MessageTimeout = short }))
	neighbour := s.dial()
	stop := neighbour.talk(b, "a whole line\n", time.Millisecond)
	idle := s.dial()
	drips := s.dial()
	drips.exchange("first\n")
	start := time.Now()
	go func() {
		for drips.tryWrite("x") == nil && time.Since(start) < patience {
			time.Sleep(2 * time.Millisecond)
		}
	}()
	s.wantClosedFor(engine.ErrMessageTimeout)
	if took := time.Since(start); took < short {
		b.Errorf("closed after %v, which is less than the limit", took)
	}
	stop()
	idle.exchange("nothing was wrong with me\n")
	drips.Close()
	s.wantClosed(engine.ErrMessageTimeout)
	s.wantCause(engine.ClosedMessage, 1)
}

func (c *client) tryWrite(p string) error {
	_, err := io.WriteString(c, p)
	return err
}

// wantClosedFor waits until a connection has ended its sending for a reason; the
// peer's end may still be waited for, so it is ended as well.
func (s *server) wantClosedFor(why error) {
	s.t.Helper()
	eventually(s.t, "no connection is closed or closing", func() bool {
		n := s.Counters()
		return n[engine.Closing] > 0 || len(s.reasons()) > 0
	})
	for _, got := range s.reasons() {
		if !errors.Is(got, why) {
			s.t.Errorf("closed for %v, want %v", got, why)
		}
	}
}

func idle(b *bench) {
	s := b.serve(lines(), limited(func(l *engine.Limits) { l.IdleTimeout = short }))
	neighbour := s.dial()
	stop := neighbour.talk(b, "a whole line\n", short/8)
	quiet := s.dial()
	start := time.Now()
	quiet.exchange("hello\n")
	half := s.dial()
	half.send("half a mess")
	quiet.expectEnd("")
	if took := time.Since(start); took < short/2 {
		b.Errorf("closed after %v", took)
	}
	quiet.Close()
	s.wantClosed(engine.ErrIdleTimeout)
	s.wantCause(engine.ClosedIdle, 1)
	stop()
	half.send("age\n")
	half.expect("half a message\n")
}

func writeTimes(b *bench) {
	takeInTime(b, func(c *engine.Conn, answer []byte) { c.Write(answer) })
}

func fileTimes(b *bench) {
	f, _ := b.file(fileSize)
	takeInTime(b, func(c *engine.Conn, answer []byte) {
		switch err := c.SendFile(f, 0, -1); {
		case errors.Is(err, errors.ErrUnsupported):
			c.Write(answer)
		case err != nil:
			b.Errorf("SendFile: %v", err)
		}
	})
}

func takeInTime(b *bench, send func(c *engine.Conn, answer []byte)) {
	const owed = fileSize
	answer := pattern(owed)
	s := b.serve(&Script{Received: func(c *engine.Conn, in []byte) int {
		if in[0] == 'g' {
			send(c, answer)
		} else {
			c.Write(in)
		}
		return len(in)
	}}, limited(func(l *engine.Limits) { l.MaxUnsent, l.WriteTimeout = 2*owed, 2*short }))
	none, drips, steady, other := s.dial(), s.dial(), s.dial(), s.dial()
	for _, c := range []*client{none, drips, steady} {
		c.smallBuffers()
		c.send("g")
	}
	go func() {
		one := make([]byte, 1)
		for start := time.Now(); time.Since(start) < patience; time.Sleep(short / 16) {
			if _, err := drips.Read(one); err != nil {
				return
			}
		}
	}()
	got := make([]byte, 0, owed)
	for piece := make([]byte, owed/8); len(got) < owed; time.Sleep(short / 8) {
		n, err := io.ReadFull(steady, piece)
		if err != nil {
			b.Fatalf("the one that reads steadily: %v after %d bytes", err, len(got))
		}
		got = append(got, piece[:n]...)
	}
	if !bytes.Equal(got, answer) {
		b.Error("the one that reads steadily got something else")
	}
	s.wantClosed(engine.ErrWriteTimeout, engine.ErrWriteTimeout)
	s.wantCause(engine.ClosedWrite, 2)
	other.exchange("hello")
	steady.exchange("hello")
}

// slowHandler has a handler take longer than each of the times: the peer is not
// to be blamed for it.
func slowHandler(b *bench) {
	s := b.serve(&Script{Received: func(c *engine.Conn, in []byte) int {
		if bytes.Contains(in, []byte("slow")) {
			time.Sleep(3 * short)
		}
		return answerLine(c, in)
	}}, limited(func(l *engine.Limits) {
		l.FirstByteTimeout, l.IdleTimeout, l.MessageTimeout, l.WriteTimeout = short, short, short, short
	}))
	c := s.dial()
	for range 2 {
		c.exchange("slow\n")
		time.Sleep(short / 3) // so long it takes to think about the answer
		c.send("half a mess")
		c.exchange2("age\n", "half a message\n")
	}
	if n := s.reasons(); len(n) > 0 {
		b.Errorf("closed for %v", n)
	}
}

// pausedPeer has a connection paused by output that the peer reads, but late.
func pausedPeer(b *bench) {
	const owed = 8 << 20 // more than the kernel takes
	answer := pattern(owed)
	s := b.serve(&Script{Received: func(c *engine.Conn, in []byte) int {
		n := bytes.IndexByte(in, '\n') + 1
		if n > 0 && in[0] == 'g' {
			c.Write(answer)
		} else {
			c.Write(in[:n])
		}
		return n
	}}, limited(func(l *engine.Limits) {
		l.MaxUnsent, l.HighWater, l.LowWater = 2*owed, 64<<10, 16<<10
		l.FirstByteTimeout, l.IdleTimeout, l.MessageTimeout = short, short, short
	}))
	c := s.dial()
	c.smallBuffers()
	c.send("g\nhalf a mess")
	eventually(b, "it is not paused", func() bool { return s.Counters()[engine.Paused] == 1 })
	time.Sleep(4 * short)
	c.expect(string(answer))
	c.send("age\n")
	c.expect("half a message\n")
	if n := s.reasons(); len(n) > 0 {
		b.Errorf("closed for %v", n)
	}
}

// talksWhileOwed has a peer talk regularly while it is owed more than the kernel
// takes: it is not silent.
func talksWhileOwed(b *bench) {
	const owed = 6 << 20
	answer := pattern(owed)
	s := b.serve(&Script{Received: func(c *engine.Conn, in []byte) int {
		if in[0] == 'g' {
			c.Write(answer)
		}
		return len(in)
	}}, limited(func(l *engine.Limits) { l.MaxUnsent, l.IdleTimeout = 2*owed, 4*short }),
		beating(2, func(*engine.Conn) {}))
	c := s.dial()
	c.smallBuffers()
	c.send("g")
	for start := time.Now(); time.Since(start) < 6*short; time.Sleep(short / 8) {
		c.send("I am here")
	}
	if n := s.reasons(); len(n) > 0 {
		b.Fatalf("closed for %v", n)
	}
	if n := s.Counters()[engine.BytesOut]; n >= owed {
		b.Errorf("the kernel has taken all %d bytes: the test is at fault", n)
	}
	c.expect(string(answer))
}

func handlerTime(b *bench) {
	s := b.serve(&Script{Received: func(c *engine.Conn, in []byte) int {
		time.Sleep(40 * time.Millisecond)
		return answerLine(c, in)
	}}, limited(func(l *engine.Limits) { l.HandlerTime = 20 * time.Millisecond }))
	c := s.dial()
	for range 3 {
		c.exchange("hello\n")
	}
	eventually(b, "no slow handler is counted", func() bool { return s.Counters()[engine.Slow] > 0 })
	if s.log.count(slog.LevelWarn, "peer", c.LocalAddr().String()) == 0 {
		b.Error("nothing is logged of it")
	}
}

// beating are the heartbeats of a server.
func beating(missed int, send func(c *engine.Conn)) with {
	return func(cfg *engine.Config) {
		cfg.Heartbeat = engine.Heartbeat{Every: short, MaxMissed: missed, Send: send}
	}
}

func heartbeats(b *bench) {
	s := b.serve(&Script{Received: func(c *engine.Conn, in []byte) int {
		if !strings.HasPrefix(string(in), "pong\n") {
			return answerLine(c, in)
		}
		return len("pong\n")
	}}, beating(1, func(c *engine.Conn) { c.Write([]byte("ping\n")) }),
		func(cfg *engine.Config) { cfg.Heartbeat.Every = 2 * short }) // the talker may be held up
	talker := s.dial()
	stop := talker.talk(b, "I talk\n", short/8) // and expects nothing else
	answers := s.dial()
	for range 3 {
		answers.expect("ping\n")
		answers.send("pong\n")
	}
	stop()
	if n := s.Counters()[engine.Heartbeats]; n < 3 {
		b.Errorf("%d heartbeats are counted, want 3 at least", n)
	}
	if n := s.reasons(); len(n) > 0 {
		b.Errorf("closed for %v", n)
	}
}

func heartbeatsMissed(b *bench) {
	s := b.serve(&Script{}, beating(2, func(c *engine.Conn) { c.Write([]byte("ping\n")) }))
	start := time.Now() // the server's clock may start before dial returns
	c := s.dial()
	c.expect("ping\nping\n")
	c.expectGone()
	if took := time.Since(start); took < 3*short {
		b.Errorf("closed after %v, want %v at least", took, 3*short)
	}
	s.wantClosed(engine.ErrHeartbeatTimeout)
	s.wantCause(engine.ClosedHeartbeat, 1)
	if n := s.Counters()[engine.Heartbeats]; n != 2 {
		b.Errorf("%d heartbeats are counted, want 2", n)
	}
}

func heartbeatPanics(b *bench) {
	var first atomic.Bool
	s := b.serve(lines(), beating(100, func(c *engine.Conn) {
		if first.CompareAndSwap(false, true) {
			panic(errPanic)
		}
	}))
	unlucky := s.dial()
	unlucky.expectGone()
	s.wantClosed(errPanic)
	s.wantCause(engine.ClosedPanic, 1)
	s.dial().exchange("hello\n")
}
