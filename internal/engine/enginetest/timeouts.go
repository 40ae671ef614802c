package enginetest

import (
	"errors"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

// timeCases test a driver's part of the time limits: sweeps, reads before a timeout, and progress
// reports. The rules themselves are tested in virtual time. No client here depends on being fast.
var timeCases = []testCase{
	{"silence is given up", testSilenceTimeouts},
	{"output that is not taken is given up", testWriteTimeout},
	{"handshakes that stall are given up", testStalledHandshakes},
	{"heartbeats that are not answered", func(b *testEnv) { testMissedHeartbeats(b, nil) }},
	{"heartbeats that the sweep sends", func(b *testEnv) { testMissedHeartbeats(b, []byte("ping\n")) }},
	{"heartbeats that are answered", testAnsweredHeartbeats},
	{"heartbeats behind unsent output", testHeartbeatBehindOutput},
	{"peer that talks while its handler is slow", testSlowHandlerExtendsTimeouts},
	{"HandlerTime", testHandlerTimeLimit},
	{"accept rate", testAcceptRate},
	{"timers are called soon", testTimers},
}

// short is the time limit in these cases.
const short = 400 * time.Millisecond

// wantClosedByCause checks that n connections were closed for a cause.
func (s *server) wantClosedByCause(cause engine.Cause, n int64) {
	s.t.Helper()
	testkit.WaitFor(s.t, "connections are not counted as closed for their cause", func() bool { return s.Counters().ClosedBy(cause) == n })
}

// testSilenceTimeouts has a peer for each limit on silence.
func testSilenceTimeouts(b *testEnv) {
	tls := b.withLayers(false, true)
	plain := func(send, want string) func(*server) (*client, io.Reader) {
		return func(s *server) (*client, io.Reader) {
			c := s.dial()
			if send != "" {
				c.sendAndExpect(send, want)
			}
			return c, c
		}
	}
	part := func(s *server) (*client, io.Reader) { return s.sendPartialRecord(b) }
	for _, c := range []struct {
		reason error
		cause  engine.Cause
		limit  func(l *engine.Limits)
		with   []with
		talk   func(s *server) (*client, io.Reader)
	}{
		{engine.ErrFirstByteTimeout, engine.ClosedFirstByte, func(l *engine.Limits) { l.FirstByteTimeout = short }, nil, plain("", "")},
		{engine.ErrMessageTimeout, engine.ClosedMessage, func(l *engine.Limits) { l.MessageTimeout = short }, nil, plain("hello\nhalf a mess", "hello\n")},
		{engine.ErrMessageTimeout, engine.ClosedMessage, func(l *engine.Limits) { l.MessageTimeout = short }, []with{tls}, part},
		{engine.ErrIdleTimeout, engine.ClosedIdle, func(l *engine.Limits) { l.IdleTimeout = short }, nil, plain("hello\n", "hello\n")},
	} {
		s := b.startServer(lines(), append(c.with, limited(c.limit))...)
		start := time.Now()
		peer, in := c.talk(s)
		_, _ = io.Copy(io.Discard, in) // until EOF or a reset
		took := time.Since(start)
		peer.Close()
		s.wantClosedByCause(c.cause, 1)
		if took < short {
			b.Errorf("closed for %v after %v, which is less than the limit", c.reason, took)
		}
	}
}

// testWriteTimeout has peers that do not read, with written output and with a file.
func testWriteTimeout(b *testEnv) {
	f, content := b.newRandomFile(fileSize)
	answer := []byte(content)
	for _, send := range []func(c *engine.Conn) error{
		func(c *engine.Conn) error { _, err := c.Write(answer); return err },
		func(c *engine.Conn) error { return c.SendFile(f, 0, -1) },
	} {
		s := b.startServer(&Script{Received: func(c *engine.Conn, in []byte) int {
			if err := send(c); errors.Is(err, errors.ErrUnsupported) {
				c.Write(answer)
			} else if err != nil {
				b.Errorf("sending: %v", err)
			}
			return len(in)
		}}, limited(func(l *engine.Limits) { l.MaxUnsent, l.WriteTimeout = 2*fileSize, short }))
		c := s.dial()
		c.shrinkSocketBuffers()
		start := time.Now()
		c.Send("g")
		s.wantClosed(engine.ErrWriteTimeout)
		if took := time.Since(start); took < short {
			b.Errorf("closed after %v, which is less than the limit", took)
		}
		s.wantClosedByCause(engine.ClosedWrite, 1)
	}
}

// testStalledHandshakes has peers that send part of a handshake or nothing.
func testStalledHandshakes(b *testEnv) {
	for _, proxied := range []bool{true, false} {
		s := b.startServer(lines(), b.withLayers(proxied, !proxied), limited(func(l *engine.Limits) { l.HandshakeTimeout = short }))
		silent, stalls := s.dial(), s.dial()
		if proxied {
			stalls.Send("PROX")
		} else {
			stalls.Send("\x16\x03\x01\x02\x00\x01")
		}
		silent.ExpectClosed()
		stalls.ExpectClosed()
		s.wantRefused(engine.RefusedTimeout, 2)
	}
}

// testSlowHandlerExtendsTimeouts has a handler that is slower than each limit: what the peer has
// sent meanwhile must count.
func testSlowHandlerExtendsTimeouts(b *testEnv) {
	said := make(chan struct{})
	s := b.startServer(&Script{Received: func(c *engine.Conn, in []byte) int {
		if in[0] == 's' {
			<-said
			time.Sleep(3 * short)
		}
		return answerLine(c, in)
	}}, limited(func(l *engine.Limits) { l.IdleTimeout, l.MessageTimeout = short, short }))
	c := s.dial()
	c.Send("slow\n")
	c.Send("half a message\n")
	close(said)
	c.Expect("slow\nhalf a message\n")
}

// testTimers has a timer that is set again in each call, and then a deadline. If only sweeps found due timers, the test
// would take longer than patience.
func testTimers(b *testEnv) {
	const calls, after = 200, 5 * time.Millisecond
	var setAt time.Time
	left := calls
	s := b.startServer(&Script{Opened: func(c *engine.Conn) {
		setAt = time.Now()
		c.SetTimer(time.Hour)
		c.SetTimer(after) // replaces the timer of an hour
	}}, func(cfg *engine.Config) {
		cfg.Timer = func(c *engine.Conn) {
			if took := time.Since(setAt); took < after {
				b.Errorf("Timer was called after %v, which is less than %v", took, after)
			}
			if left--; left > 0 {
				setAt = time.Now()
				c.SetTimer(after)
			} else {
				c.SetDeadline(after)
			}
		}
	})
	c := s.dial()
	c.ExpectEOF("")
	c.Close()
	s.wantClosed(engine.ErrDeadline)
}

func testHandlerTimeLimit(b *testEnv) {
	s := b.startServer(&Script{Received: func(c *engine.Conn, in []byte) int {
		time.Sleep(40 * time.Millisecond)
		return answerLine(c, in)
	}}, limited(func(l *engine.Limits) { l.SlowHandlerTime = 20 * time.Millisecond }))
	c := s.dial()
	for range 3 {
		c.exchange("hello\n")
	}
	testkit.WaitFor(b, "no slow handler is counted", func() bool { return s.Counters()[engine.SlowCalls] > 0 })
	if s.log.count(slog.LevelWarn, "peer", c.LocalAddr().String()) == 0 {
		b.Error("nothing is logged of it")
	}
}

func testMissedHeartbeats(b *testEnv, message []byte) {
	s := b.startServer(&Script{}, func(cfg *engine.Config) {
		cfg.Heartbeat = engine.Heartbeat{Every: short, MaxMissed: 2, Message: message, Send: func(c *engine.Conn) { c.Write([]byte("ping\n")) }}
	})
	start := time.Now() // the server's clock may start before dial returns
	c := s.dial()
	c.Expect("ping\nping\n")
	c.ExpectClosed()
	if took := time.Since(start); took < 3*short {
		b.Errorf("closed after %v, want %v at least", took, 3*short)
	}
	s.wantClosed(engine.ErrHeartbeatTimeout)
	s.wantClosedByCause(engine.ClosedHeartbeat, 1)
	if n := s.Counters()[engine.Heartbeats]; n != 2 {
		b.Errorf("%d heartbeats are counted, want 2", n)
	}
}

// testAnsweredHeartbeats answers a heartbeat after a silence of several sweeps, in which a model may stop to receive.
func testAnsweredHeartbeats(b *testEnv) {
	s := b.startServer(&Script{}, func(cfg *engine.Config) {
		cfg.Heartbeat = engine.Heartbeat{Every: 4 * short, MaxMissed: 255, Message: []byte("ping\n"), Send: func(c *engine.Conn) { c.Write([]byte("ping\n")) }}
	})
	c := s.dial()
	c.Send("data\n")
	c.Expect("ping\n")
	c.Send("pong\n")
	testkit.WaitFor(b, "the answer is not received", func() bool { return s.Counters()[engine.BytesIn] == int64(len("data\npong\n")) })
}

// testHeartbeatBehindOutput does not read until heartbeats are due. They must not come within the unsent output.
func testHeartbeatBehindOutput(b *testEnv) {
	output := strings.Repeat("x", 16<<20)
	s := b.startServer(answerWith([]byte(output)), func(cfg *engine.Config) {
		cfg.Limits.MaxUnsent, cfg.Limits.HighWater = 64<<20, 32<<20
		cfg.Heartbeat = engine.Heartbeat{Every: short / 2, MaxMissed: 255, Message: []byte("ping\n"), Send: func(c *engine.Conn) { c.Write([]byte("ping\n")) }}
	})
	c := s.dial()
	c.Send("go\n")
	testkit.WaitFor(b, "the request is not received", func() bool { return s.Counters()[engine.BytesIn] > 0 })
	earlier := s.Counters()[engine.Heartbeats]
	testkit.WaitFor(b, "no heartbeat is sent", func() bool { return s.Counters()[engine.Heartbeats] > earlier })
	first := make([]byte, len("ping\n"))
	for done := false; !done; { // on a busy machine, heartbeats may come before the request
		_, err := io.ReadFull(c, first)
		b.checkNoError(err)
		done = string(first) != "ping\n"
	}
	if string(first) != output[:len(first)] {
		b.Fatalf("got %q; want the output", first)
	}
	c.Expect(output[len(first):] + "ping\n")
	c.Close()
}
