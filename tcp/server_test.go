package tcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"

	"github.com/myriad-go/myriad/pool"
)

// successorSettings is the environment variable with the settings of a worker or successor process in these
// tests; successorMain is its main function, where such processes are supported.
const successorSettings = "MYRIAD_TEST_SUCCESSOR"

var successorMain func(settings string) int

func TestMain(m *testing.M) {
	if settings := os.Getenv(successorSettings); settings != "" && successorMain != nil {
		os.Exit(successorMain(settings))
	}
	testkit.Main(m)
}

func echoLine(c *Conn, line []byte) {
	c.Write(line)
	c.WriteString("\n")
}

// hooks is a Handler and a MessageHandler of functions. Those that are nil do nothing.
type hooks struct {
	opened   func(*Conn)
	received func(c *Conn, in []byte) (used int)
	message  func(c *Conn, msg []byte)
	closed   func(why error)
}

func (h hooks) Opened(c *Conn) {
	if h.opened != nil {
		h.opened(c)
	}
}

func (h hooks) Received(c *Conn, in []byte) (used int) {
	if h.received != nil {
		return h.received(c, in)
	}
	return Base{}.Received(c, in)
}

func (h hooks) Message(c *Conn, msg []byte) { h.message(c, msg) }

func (h hooks) Ended(c *Conn, rest []byte) (used int) { return Base{}.Ended(c, rest) }

func (h hooks) Closed(_ *Conn, why error) {
	if h.closed != nil {
		h.closed(why)
	}
}

type started struct {
	*Server
	addr string
	stop context.CancelFunc // cancels the context of ListenAndServe
	err  chan error         // result of ListenAndServe
}

// newPool creates a pool that is closed at the end of the test, after servers that are started later.
func newPool(t *testing.T, cfg pool.Config) *pool.Pool {
	t.Helper()
	p, err := pool.New(cfg)
	requireNoError(t, err)
	t.Cleanup(func() {
		if dropped, err := p.Close(context.Background()); len(dropped) > 0 || err != nil {
			t.Errorf("closing the pool after its servers have ended: %d jobs dropped, %v; want none", len(dropped), err)
		}
	})
	return p
}

// plainPoolConfig configures a pool that neither adapts nor sheds.
func plainPoolConfig(workers, queue int) pool.Config {
	return pool.Config{Max: workers, Queue: queue, FixedLimit: true, KeepQueued: true, FIFO: true}
}

// startServer runs a server on a free port until the end of the test.
func startServer(t testing.TB, srv *Server) *started {
	t.Helper()
	if srv.Log == nil {
		srv.Log = slog.New(slog.DiscardHandler)
	}
	if srv.Handler == nil && !slices.ContainsFunc(srv.Listeners, func(l Listener) bool { return l.Handler != nil }) {
		srv.Handler = Lines(MessageFunc(echoLine))
	}
	if srv.Limits.Linger == 0 {
		srv.Limits.Linger = 50 * time.Millisecond
	}
	if len(srv.Listeners) == 0 {
		srv.Addr = cmp.Or(srv.Addr, "127.0.0.1:0")
	}
	ready := make(chan string, 1+len(srv.Listeners))
	listening := srv.Listening
	srv.Listening = func(a net.Addr) {
		if listening != nil {
			listening(a)
		}
		ready <- a.String()
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &started{Server: srv, stop: cancel, err: make(chan error, 1)}
	go func() { s.err <- srv.ListenAndServe(ctx) }()
	t.Cleanup(func() {
		cancel()
		srv.Close()
	})
	select {
	case s.addr = <-ready:
	case err := <-s.err:
		t.Fatalf("ListenAndServe: %v", err)
	case <-time.After(testkit.Timeout):
		t.Fatal("the server does not listen")
	}
	return s
}

func (s *started) waitResult(t *testing.T) error {
	t.Helper()
	return testkit.Receive(t, s.err, "the end of ListenAndServe")
}

func (s *started) waitOpen(t *testing.T, n int64) {
	t.Helper()
	eventually(t, func() bool { return s.Stats().Open == n }, func() string {
		return fmt.Sprintf("%d connections are open, want %d", s.Stats().Open, n)
	})
}

// expectError checks that err is want and contains the words. It may be called on any goroutine.
func expectError(t testing.TB, what string, err, want error, words ...string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v; want %v", what, err, want)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v; want an error that says %q", what, err, word)
		}
	}
}

func expectEqual[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v; want %v", what, got, want)
	}
}

// expectReason waits for the reason of a closed connection.
func expectReason(t testing.TB, what string, reasons <-chan error, want error) {
	t.Helper()
	expectError(t, what, testkit.Receive(t, reasons, what), want)
}

// expectClosedWithoutOutput waits until the connections are closed, and checks that they have got nothing.
func expectClosedWithoutOutput(t testing.TB, conns ...*testkit.Conn) {
	t.Helper()
	for i, c := range conns {
		if got := c.ExpectClosed(); got != "" {
			t.Errorf("connection %d of %d: got %q; want the end", i+1, len(conns), got)
		}
	}
}

func dial(t testing.TB, addr string) *testkit.Conn {
	t.Helper()
	return testkit.Dial(t, addr)
}

var (
	waitFor        = testkit.WaitFor
	eventually     = testkit.WaitForFunc
	requireNoError = testkit.RequireNoError
	expectNoError  = testkit.ExpectNoError
	identity       = testkit.Identity
)

// forEachModel runs a test under every model, with two loops if it has any.
func forEachModel(t *testing.T, f func(t *testing.T, model string, loops int)) {
	t.Run(Goroutine, func(t *testing.T) { f(t, Goroutine, 1) })
	forEachLoopModel(t, func(t *testing.T, model string) { f(t, model, 2) })
}

func forEachLoopModel(t *testing.T, f func(t *testing.T, model string)) {
	for _, m := range Models()[1:] {
		t.Run(m, func(t *testing.T) { f(t, m) })
	}
}

func TestServe(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, loops int) {
		s := startServer(t, &Server{Model: model, Loops: loops})
		c := dial(t, s.addr)
		c.ExchangeLine("hello", "hello")
		want := Stats{Model: model, Loops: s.Stats().Loops, MaxConns: s.Stats().MaxConns,
			Open: 1, Accepted: 1, Reads: 1, Writes: 1, BytesIn: 6, BytesOut: 6, Messages: 1}
		counted := func() Stats {
			now := s.Stats()
			now.Lag, now.HandlerTime, now.Busy = Histogram{}, Histogram{}, 0
			return now
		}
		eventually(t, func() bool { return counted() == want }, func() string {
			return fmt.Sprintf("after one exchange of 6 bytes the counters are %+v, want %+v", counted(), want)
		})
		s.stop()
		expectNoError(t, s.waitResult(t))
		c.ExpectEOF("")
		expectError(t, "after the end", s.ListenAndServe(t.Context()), ErrServerClosed, "already served", "new Server")
	})
}

// Sockets that share a port must still detect that another program uses it.
func TestAddressInUse(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, loops int) {
		s := startServer(t, &Server{Model: model, Loops: loops})
		second := &Server{Addr: s.addr, Handler: Base{}, Model: model, Loops: loops}
		expectError(t, "a second server", second.ListenAndServe(t.Context()), syscall.EADDRINUSE)
	})
}

// A connection in the middle of a message delays a shutdown until the context ends; the error
// then has the number of connections.
func TestShutdownTimeout(t *testing.T) {
	t.Parallel() // mostly waits
	forEachModel(t, func(t *testing.T, model string, loops int) {
		s := startServer(t, &Server{Model: model, Loops: loops, Limits: Limits{ShutdownTimeout: 50 * time.Millisecond}})
		dial(t, s.addr).Send("half a li")
		waitFor(t, "nothing is received", func() bool { return s.Stats().BytesIn > 0 })
		s.stop()
		expectError(t, "the shutdown", s.waitResult(t), context.DeadlineExceeded, "1 connections")
	})
}

// callMethods calls the methods that need a running server.
func (s *Server) callMethods(t *testing.T) map[string]error {
	_, broadcast := s.Broadcast(Broadcast{All: true, Message: []byte("x")})
	_, upgrade := s.Upgrade(t.Context())
	_, accepted := newConnPair(t)
	return map[string]error{
		"Broadcast": broadcast, "Upgrade": upgrade, "Adopt": s.Adopt(accepted, nil),
		"PauseAccepting": s.PauseAccepting(), "ResumeAccepting": s.ResumeAccepting(),
		"CloseConns": s.CloseConns(netip.MustParseAddrPort("192.0.2.1:80")),
		"Dial":       s.Dial(Dial{Addr: "127.0.0.1:80", Handler: Base{}}),
		"Each":       s.Each(t.Context(), func(*Conn) {}),
	}
}

func TestBeforeStartAndAfterEnd(t *testing.T) {
	var srv Server
	for name, err := range srv.callMethods(t) {
		expectError(t, name+" before the start", err, ErrServerClosed)
	}
	if st, addr := srv.Stats(), srv.ListenAddr(); st != (Stats{}) || addr != nil {
		t.Errorf("before the start it counts %+v and listens on %v", st, addr)
	}
	expectNoError(t, srv.Shutdown(t.Context()))
	if !srv.Stats().Draining {
		t.Error("a server that was closed is not draining")
	}
	srv.Addr, srv.Handler = "127.0.0.1:0", Base{}
	expectError(t, "after Shutdown", srv.ListenAndServe(t.Context()), ErrServerClosed, "closed before it was started")
	forEachModel(t, func(t *testing.T, model string, loops int) {
		s := startServer(t, &Server{Model: model, Loops: loops})
		expectEqual(t, "ListenAddr", s.ListenAddr().String(), s.addr)
		expectNoError(t, s.Drain())
		expectNoError(t, s.waitResult(t))
		for name, err := range s.callMethods(t) {
			expectError(t, name+" after the end", err, ErrServerClosed)
		}
	})
}

// Opened and killed connections leave no memory behind.
func TestConnectionsLeaveNothing(t *testing.T) {
	const conns, times = 300, 3
	forEachModel(t, func(t *testing.T, model string, loops int) {
		s := startServer(t, &Server{Model: model, Loops: loops})
		cycle := func() {
			open := make([]*testkit.Conn, conns)
			for i := range open {
				nc, err := net.Dial("tcp", s.addr) // without a cleanup, which would keep it
				requireNoError(t, err)
				open[i] = &testkit.Conn{Conn: nc}
				open[i].Write([]byte("hello\n"))
				_, err = io.ReadFull(nc, make([]byte, len("hello\n")))
				requireNoError(t, err)
			}
			for _, c := range open {
				c.Reset()
			}
			s.waitOpen(t, 0)
		}
		for range min(runtime.GOMAXPROCS(0), 8) {
			cycle() // makes room for so many, which is kept: each processor keeps goroutines that have ended
		}
		const most = conns * times * 32 // a third of what a forgotten connection costs
		var grown int64
		for range 3 { // what has a bound, such as the goroutines that wait for use again, grows once
			before := testkit.LiveHeapBytes()
			for range times {
				cycle()
			}
			if grown = testkit.LiveHeapBytes() - before; grown <= most {
				return
			}
		}
		t.Errorf("%d connections have left %d bytes in the heap, more than %d", conns*times, grown, most)
	})
}

func TestCloseFromHandler(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, loops int) {
		t.Parallel()
		srv := &Server{Model: model, Loops: loops}
		srv.Handler = Lines(MessageFunc(func(*Conn, []byte) { srv.Close() }))
		s := startServer(t, srv)
		dial(t, s.addr).Send("quit\n")
		expectNoError(t, s.waitResult(t))
	})
}

// A message from within a handler to thousands of connections fits into the default limits.
func TestBroadcastFromHandler(t *testing.T) {
	const members, size = 1000, 8 << 10
	testkit.AcquireDescriptorsOrSkip(t, 2*members+100)
	forEachModel(t, func(t *testing.T, model string, loops int) {
		var refs sync.Map
		var opened atomic.Int64 // a connection is counted as open before Opened is called
		failed := make(chan error, 1)
		h := hooks{opened: func(c *Conn) { refs.Store(c.Ref(), true); opened.Add(1) }, message: func(*Conn, []byte) {
			var err error
			for ref := range refs.Range {
				err = errors.Join(err, ref.(Ref).Send(make([]byte, size)))
			}
			failed <- err
		}}
		s := startServer(t, &Server{Model: model, Loops: loops, Handler: Lines(h)})
		conns := make([]*testkit.Conn, members)
		for i := range conns {
			conns[i] = dial(t, s.addr)
		}
		waitFor(t, "not all are opened", func() bool { return opened.Load() == members })
		conns[0].Send("now\n")
		expectNoError(t, testkit.Receive(t, failed, "the handler's answer"))
		for _, c := range conns {
			if n, err := io.ReadFull(c, make([]byte, size)); err != nil {
				t.Fatalf("a member got %d of %d bytes: %v", n, size, err)
			}
		}
	})
}

// The rate limit of log messages applies to each loop and handler type separately.
func TestLogOfLoops(t *testing.T) {
	var out strings.Builder
	synctest.Test(t, func(*testing.T) { // where a second is not over before its time
		log := (&Server{Log: slog.New(slog.NewTextHandler(&out, nil))}).rateLimitedLogger()
		for range 2 {
			for loop := range 3 {
				log.Warn("loop is slow", "loop", loop)
			}
			for _, h := range []Handler{Base{}, Lines(MessageFunc(echoLine))} {
				log.Error("handler is wrong", "handler", handlerType(h))
			}
		}
	})
	for text, want := range map[string]int{"loop is slow": 3, "handler is wrong": 2, "tcp.Base": 1, "tcp.MessageFunc": 1} {
		if n := strings.Count(out.String(), text); n != want {
			t.Errorf("%q is in the log %d times, want %d:\n%s", text, n, want, out.String())
		}
	}
}
