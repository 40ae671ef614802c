package enginetest

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

var stopCases = []testCase{
	{"Stop with idle connections, and half a message received", func(b *testEnv) { testStopWithIdleConns(b, "") }},
	{"Draining says goodbye", func(b *testEnv) { testStopWithIdleConns(b, "goodbye\n") }},
	{"Stop with output owed to a slow reader", func(b *testEnv) { testOutputOwedAtEnd(b, true) }},
	{"Stop with a message on its way", func(b *testEnv) { testStopWithUnreadInput(b, false) }},
	{"Stop with a PROXY header on its way", func(b *testEnv) { testStopWithUnreadInput(b, true) }},
	{"Stop while clients flood", testStopWhileFlooded},
	{"Stop when its context ends", testStopCutOff},
	{"Stop twice", testStopTwice},
	{"calls after Stop", testCallsAfterStop},
}

// background returns a context for a Stop that is expected to complete.
func background(b *testEnv) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	b.Cleanup(cancel)
	return ctx
}

// testStopWithIdleConns stops with idle connections and one with half a message, which must be answered. Draining
// writes goodbye to each connection, unless goodbye is empty.
func testStopWithIdleConns(b *testEnv, goodbye string) {
	const n = 20
	var told atomic.Int64
	s := b.startServer(lines(), func(cfg *engine.Config) {
		if goodbye != "" {
			cfg.Draining = func(c *engine.Conn) {
				told.Add(1)
				c.WriteString(goodbye)
			}
		}
	})
	clients := s.dialMany(n)
	clients[1].exchange("not all are fresh\n")
	clients[0].Send("half a mess")
	s.wantBytesIn(11 + 18)
	s.wantOpened(n)
	wantStopped := s.stopMeanwhile(b)
	for _, c := range clients[1:] {
		c.ExpectEOF(goodbye)
		c.Close()
	}
	clients[0].Expect(goodbye)
	clients[0].Send("age\n")
	clients[0].ExpectEOF("half a message\n")
	clients[0].Close()
	wantStopped()
	s.wantClosed(slices.Repeat([]error{engine.ErrServerClosed}, n)...)
	s.wantClosedByCause(engine.ClosedShutdown, n)
	if got := told.Load(); goodbye != "" && got != n {
		b.Errorf("Draining was called %d times for %d connections", got, n)
	}
}

// testStopWithUnreadInput stops with messages, and PROXY headers before them, that the server may not have read. They
// must be answered or ignored, but each client must see EOF and no partial answer.
func testStopWithUnreadInput(b *testEnv, proxied bool) {
	const n = 20
	s := b.startServer(lines(), b.withLayers(proxied, false))
	clients := s.dialMany(n)
	header, messages := "", strings.Repeat("a line of some length\n", 500)
	if proxied {
		header, messages = "PROXY TCP4 192.0.2.1 192.0.2.2 1234 80\r\n", "hello\n"
		testkit.WaitFor(b, "not all have been accepted", func() bool { return s.Counters()[engine.Handshaking] == n })
	} else {
		s.wantOpened(n)
	}
	for _, c := range clients {
		c.Send(header + messages)
	}
	wantStopped := s.stopMeanwhile(b)
	for _, c := range clients {
		got, err := io.ReadAll(c)
		if err != nil || !strings.HasPrefix(messages, string(got)) || len(got) > 0 && got[len(got)-1] != '\n' {
			b.Errorf("client: %s, %v; want whole answers or none, and an orderly end", abbreviate(got), err)
		}
		c.Close()
	}
	wantStopped()
	if !proxied {
		s.wantClosed(slices.Repeat([]error{engine.ErrServerClosed}, n)...)
	}
}

// stopMeanwhile calls Stop in the background. The result waits for its return and checks that all connections are
// closed.
func (s *server) stopMeanwhile(b *testEnv) (wantStopped func()) {
	done := s.stop(background(b))
	return func() {
		b.Helper()
		b.checkNoError(testkit.Receive(b, done, "the return of Stop"))
		if n := s.Counters()[engine.Open]; n != 0 {
			b.Errorf("%d connections are open after Stop", n)
		}
	}
}

func testStopCutOff(b *testEnv) {
	const owed = 8 << 20
	s := b.startServer(&Script{Received: func(c *engine.Conn, in []byte) int {
		if in[0] == 'g' {
			c.Write(make([]byte, owed))
			return len(in)
		}
		return 0
	}}, limited(func(l *engine.Limits) { l.MaxUnsent = 2 * owed }))
	owing, half, idle := s.dial(), s.dial(), s.dial()
	owing.shrinkSocketBuffers()
	owing.Send("g")
	half.Send("half a message")
	s.wantBytesIn(15)
	s.wantOpened(3)
	cause := errors.New("the test's patience ends")
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	done := s.stop(ctx)
	idle.ExpectEOF("")
	idle.Close()
	s.wantClosed(engine.ErrServerClosed)
	select {
	case err := <-done:
		b.Errorf("Stop returned %v while two connections were busy", err)
	default:
	}
	cancel(cause)
	if err := testkit.Receive(b, done, "the return of Stop"); !errors.Is(err, cause) {
		b.Errorf("Stop: %v, want the context's cause: %v", err, cause)
	}
	s.wantClosed(engine.ErrServerClosed, engine.ErrServerClosed, engine.ErrServerClosed)
	half.ExpectClosed()
	owing.ExpectClosed()
}

func testStopTwice(b *testEnv) {
	s := b.startServer(lines())
	c, idle := s.dial(), s.dial()
	c.Send("half a message")
	s.wantBytesIn(14)
	s.wantOpened(2)
	firstReturned := s.stopMeanwhile(b)
	idle.ExpectEOF("")
	idle.Close()
	ctx, cancel := context.WithCancel(context.Background())
	second := s.stop(ctx)
	thirdReturned := s.stopMeanwhile(b)
	select {
	case err := <-second:
		b.Errorf("the second Stop returned %v while the first was waiting", err)
	default:
	}
	cancel()
	if err := testkit.Receive(b, second, "the return of the Stop whose context ended"); !errors.Is(err, context.Canceled) {
		b.Errorf("the Stop whose context ended: %v, want %v", err, context.Canceled)
	}
	firstReturned()
	thirdReturned()
	c.ExpectClosed()
}

func testCallsAfterStop(b *testEnv) {
	s := b.startServer(&Script{})
	c := s.dial()
	r := s.wantOpened(1)[0]
	wantStopped := s.stopMeanwhile(b)
	c.ExpectEOF("")
	c.Close()
	wantStopped()
	for call, err := range map[string]error{
		"Send": r.Send([]byte("wrong")), "Close": r.Close(), "Nudge": r.Nudge(), "Broadcast": s.BroadcastToAllConns([]byte("wrong")),
		"Dial": s.Dial(engine.DialRequest{Target: newTarget(b).addr(), Count: 1}), "Hold": s.PauseAccept(true), "Expel": s.QueueCloseOfPeerConns(netip.MustParseAddrPort("192.0.2.1:80")),
	} {
		if !errors.Is(err, engine.ErrClosed) {
			b.Errorf("%s after Stop: %v, want %v", call, err, engine.ErrClosed)
		}
	}
}

// testStopWhileFlooded stops while clients keep sending, which must not delay it.
func testStopWhileFlooded(b *testEnv) {
	const n = 8
	s := b.startServer(&Script{}, limited(func(l *engine.Limits) { l.Linger = 100 * time.Millisecond }))
	for range n {
		go s.dial().sendUntilError()
	}
	s.wantOpened(n)
	s.wantBytesIn(n << 20)
	s.stopMeanwhile(b)()
}
