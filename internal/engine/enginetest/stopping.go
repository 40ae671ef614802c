package enginetest

import (
	"context"
	"errors"
	"io"
	"net"
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
	{"Stop when connections end before they are told", testStopAfterAllClosed},
	{"Stop twice", testStopTwice},
	{"calls after Stop", testCallsAfterStop},
}

// background returns a context for a Stop that is expected to complete.
func background(b *testEnv) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	b.Cleanup(cancel)
	return ctx
}

func wantStopped(b *testEnv, s *server, err error) {
	b.Helper()
	b.checkNoError(err)
	if n := s.Counters()[engine.Open]; n != 0 {
		b.Errorf("%d connections are open after Stop", n)
	}
}

// testStopFreesResources stops without connections: Wait must return and the port must be free.
func testStopFreesResources(b *testEnv) {
	s := b.startServer(&Script{})
	waited := make(chan struct{})
	go func() { s.Wait(); close(waited) }()
	select {
	case <-waited:
		b.Error("Wait returned before Stop was called")
	default:
	}
	wantStopped(b, s, s.stopNow(b))
	testkit.Receive(b, waited, "the return of Wait")
	if nc, err := net.Dial("tcp", s.Addr().String()); err == nil {
		nc.Close()
		b.Error("connections are still accepted after Stop")
	}
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
	done := s.stop(background(b))
	for _, c := range clients[1:] {
		c.ExpectEOF(goodbye)
		c.Close()
	}
	clients[0].Expect(goodbye)
	clients[0].Send("age\n")
	clients[0].ExpectEOF("half a message\n")
	clients[0].Close()
	wantStopped(b, s, testkit.Receive(b, done, "the return of Stop"))
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
	done := s.stop(background(b))
	for _, c := range clients {
		got, err := io.ReadAll(c)
		if err != nil || !strings.HasPrefix(messages, string(got)) || len(got) > 0 && got[len(got)-1] != '\n' {
			b.Errorf("client: %s, %v; want whole answers or none, and an orderly end", abbreviate(got), err)
		}
		c.Close()
	}
	wantStopped(b, s, testkit.Receive(b, done, "the return of Stop"))
	if !proxied {
		s.wantClosed(slices.Repeat([]error{engine.ErrServerClosed}, n)...)
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
	wantStopped(b, s, nil)
}

// testStopAfterAllClosed stops at a very low drain rate without connections.
func testStopAfterAllClosed(b *testEnv) {
	const n = int(patience/time.Second) + 20
	s := b.startServer(lines(), limited(func(l *engine.Limits) { l.ShutdownRate = 1 }))
	clients := s.dialMany(n)
	s.wantOpened(n)
	done := s.stop(background(b))
	for _, c := range clients {
		c.Close()
	}
	wantStopped(b, s, testkit.Receive(b, done, "the return of Stop"))
}

func testStopTwice(b *testEnv) {
	s := b.startServer(lines())
	c, idle := s.dial(), s.dial()
	c.Send("half a message")
	s.wantBytesIn(14)
	s.wantOpened(2)
	first := s.stop(background(b))
	idle.ExpectEOF("")
	idle.Close()
	ctx, cancel := context.WithCancel(context.Background())
	second := s.stop(ctx)
	third := s.stop(background(b))
	select {
	case err := <-second:
		b.Errorf("the second Stop returned %v while the first was waiting", err)
	case <-third:
		b.Error("the third Stop returned while the first was waiting")
	default:
	}
	cancel()
	if err := testkit.Receive(b, second, "the return of the Stop whose context ended"); !errors.Is(err, context.Canceled) {
		b.Errorf("the Stop whose context ended: %v, want %v", err, context.Canceled)
	}
	wantStopped(b, s, testkit.Receive(b, first, "the return of the first Stop"))
	wantStopped(b, s, testkit.Receive(b, third, "the return of the third Stop"))
	wantStopped(b, s, s.Stop(background(b)))
	c.ExpectClosed()
}

func testCallsAfterStop(b *testEnv) {
	s := b.startServer(&Script{})
	c := s.dial()
	r := s.wantOpened(1)[0]
	done := s.stop(background(b))
	c.ExpectEOF("")
	c.Close()
	wantStopped(b, s, testkit.Receive(b, done, "the return of Stop"))
	wantClosedRef(b, r)
	err := s.Dial(engine.DialRequest{Target: listen(b).Addr().(*net.TCPAddr).AddrPort(), Count: 1})
	for call, err := range map[string]error{
		"Dial": err, "Hold": s.PauseAccept(true), "Expel": s.QueueCloseOfPeerConns(netip.MustParseAddrPort("192.0.2.1:80")),
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
	wantStopped(b, s, s.Stop(background(b)))
}
