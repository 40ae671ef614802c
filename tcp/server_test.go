package tcp

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
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

// successorSettings is the environment variable with the settings of a successor process in these
// tests; successorMain is its main function, where upgrades are supported.
const successorSettings = "MYRIAD_TEST_SUCCESSOR"

var successorMain func(settings string) int

func TestMain(m *testing.M) {
	if settings := os.Getenv(successorSettings); settings != "" && successorMain != nil {
		os.Exit(successorMain(settings))
	}
	if _, ok := WorkerProcess(); ok {
		os.Exit(workerMain())
	}
	testkit.Main(m)
}

// patience limits every wait of these tests. It is far longer than anything takes, also on a busy
// machine, and shorter than the default timeouts of a Server for messages, writes and shutdown,
// which would hide a hang.
const patience = 25 * time.Second

func echoLine(c *Conn, line []byte) {
	c.Write(line)
	c.WriteString("\n")
}

// started is a running server.
type started struct {
	*Server
	addr string
	stop context.CancelFunc // cancels the context of ListenAndServe
	err  chan error         // result of ListenAndServe
}

// newPool creates a pool that is closed at the end of the test, after servers that are started
// later.
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
	if srv.Handler == nil {
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
	case <-time.After(patience):
		t.Fatal("the server does not listen")
	}
	return s
}

// waitResult waits for ListenAndServe to return.
func (s *started) waitResult(t *testing.T) error {
	t.Helper()
	return testkit.Receive(t, s.err, "the end of ListenAndServe")
}

// requireNoError fails the test at once if err is not nil.
func requireNoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// expectNoError fails the test if err is not nil. It may be called on any goroutine.
func expectNoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func dial(t testing.TB, addr string) *testkit.Conn {
	t.Helper()
	return testkit.Dial(t, addr)
}

var (
	waitFor    = testkit.WaitFor
	eventually = testkit.WaitForFunc
)

// forEachModel runs a test under every model, with two loops if it has any.
func forEachModel(t *testing.T, f func(t *testing.T, model string, loops int)) {
	t.Run(Goroutine, func(t *testing.T) { f(t, Goroutine, 1) })
	forEachLoopModel(t, f)
}

// forEachLoopModel runs a test with two loops under each model that has loops.
func forEachLoopModel(t *testing.T, f func(t *testing.T, model string, loops int)) {
	for _, m := range Models()[1:] {
		t.Run(m, func(t *testing.T) { f(t, m, 2) })
	}
}

func TestServe(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, loops int) {
		s := startServer(t, &Server{Model: model, Loops: loops})
		c := dial(t, s.addr)
		c.Exchange("hello", "hello")
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
		if err := s.ListenAndServe(context.Background()); !errors.Is(err, ErrServerClosed) || !strings.Contains(err.Error(), "already served") || !strings.Contains(err.Error(), "new Server") {
			t.Errorf("a server that has served answers %v, want ErrServerClosed that says so", err)
		}
	})
}

func TestServeListener(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, loops int) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		requireNoError(t, err)
		srv := &Server{Handler: Lines(MessageFunc(echoLine)), Model: model, Loops: loops}
		ended := make(chan error, 1)
		go func() { ended <- srv.Serve(context.Background(), l) }()
		c := dial(t, l.Addr().String())
		c.Exchange("hello", "hello")
		if err := srv.Serve(context.Background(), l); err == nil || !strings.Contains(err.Error(), "is already serving") {
			t.Errorf("a second Serve answers %v", err)
		}
		c.Close()
		expectNoError(t, srv.Shutdown(context.Background()))
		if err := <-ended; err != nil {
			t.Errorf("Serve returned %v after Shutdown, want nil", err)
		}
	})
}

// Sockets that share a port must still detect that another program uses it.
func TestAddressInUse(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, loops int) {
		s := startServer(t, &Server{Model: model, Loops: loops})
		second := &Server{Addr: s.addr, Handler: Base{}, Model: model, Loops: loops}
		if err := second.ListenAndServe(context.Background()); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("a second server on %s answers %v, want EADDRINUSE", s.addr, err)
		}
	})
}

// A connection in the middle of a message delays a shutdown until the context ends; the error
// then has the number of connections.
func TestShutdownTimeout(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, loops int) {
		got := make(chan struct{})
		h := &inputNotifier{got: got, Handler: Lines(MessageFunc(echoLine))}
		s := startServer(t, &Server{Model: model, Loops: loops, Handler: h, Limits: Limits{ShutdownTimeout: 50 * time.Millisecond}})
		c := dial(t, s.addr)
		io.WriteString(c, "half a li")
		<-got
		s.stop()
		err := s.waitResult(t)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 connections") {
			t.Errorf("the shutdown answers %v; want an error that says how many were cut off and wraps DeadlineExceeded", err)
		}
	})
}

// inputNotifier closes got at the first input.
type inputNotifier struct {
	Handler
	got  chan struct{}
	told atomic.Bool
}

func (a *inputNotifier) Received(c *Conn, in []byte) int {
	used := a.Handler.Received(c, in)
	if a.told.CompareAndSwap(false, true) {
		close(a.got)
	}
	return used
}

func TestConfigErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		srv  *Server
		says []string
	}{
		{"no handler", &Server{Addr: ":0"}, []string{"Handler is nil"}},
		{"no address", &Server{Handler: Base{}}, []string{"Addr is empty", "host:port"}},
		{"network", &Server{Addr: ":0", Handler: Base{}, Network: "udp"}, []string{`"udp"`, "tcp, tcp4, tcp6 or unix"}},
		{"model", &Server{Addr: ":0", Handler: Base{}, Model: "threads"}, []string{`"threads"`, "expected one of auto, goroutine"}},
		{"Lines", &Server{Addr: ":0", Handler: Lines(nil)}, []string{"Server.Handler", "MessageHandler", "is nil"}},
		{"Lines of a nil function", &Server{Addr: ":0", Handler: Lines(MessageFunc(nil))}, []string{"MessageHandler", "is nil"}},
		{"Split", &Server{Addr: ":0", Handler: Split(bufio.ScanWords, nil)}, []string{"MessageHandler", "is nil"}},
		{"Split by nothing", &Server{Addr: ":0", Handler: Split(nil, MessageFunc(echoLine))}, []string{"SplitFunc", "bufio.ScanWords"}},
		{"no Blocking", &Server{Addr: ":0", Handler: (*Blocking)(nil)}, []string{"nil *Blocking", "Serve"}},
		{"zero NetListener", &Server{Addr: ":0", Handler: new(NetListener)}, []string{"NewNetListener"}},
		{"loops", &Server{Addr: ":0", Handler: Base{}, Loops: -1}, []string{"Loops is -1", "1024"}},
		{"too many loops", &Server{Addr: ":0", Handler: Base{}, Loops: 2000}, []string{"Loops is 2000"}},
		{"spin", &Server{Addr: ":0", Handler: Base{}, Spin: time.Second}, []string{"Spin is 1s", "10ms"}},
		{"connections", &Server{Addr: ":0", Handler: Base{}, Limits: Limits{MaxConns: -5}}, []string{"MaxConns is -5", "expected 0"}},
		{"message", &Server{Addr: ":0", Handler: Base{}, Limits: Limits{MaxMessage: 1<<30 + 1}}, []string{"MaxMessage is 1073741825", "1073741824"}},
		{"unsent", &Server{Addr: ":0", Handler: Base{}, Limits: Limits{MaxUnsent: -1}}, []string{"MaxUnsent is -1"}},
		{"mail", &Server{Addr: ":0", Handler: Base{}, Limits: Limits{MaxMail: -1}}, []string{"MaxMail is -1"}},
		{"too much mail", &Server{Addr: ":0", Handler: Base{}, Limits: Limits{MaxMail: 1<<28 + 1}}, []string{"MaxMail is 268435457", "268435456"}},
		{"time", &Server{Addr: ":0", Handler: Base{}, Limits: Limits{Linger: -time.Second}}, []string{"Linger is -1s"}},
	} {
		c.srv.Listening = func(net.Addr) { go c.srv.Close() }
		err := c.srv.ListenAndServe(context.Background())
		if !errors.Is(err, ErrBadConfig) {
			t.Errorf("%s: %v, want an error that wraps ErrBadConfig", c.name, err)
			continue
		}
		for _, word := range c.says {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: the error %q does not say %q", c.name, err, word)
			}
		}
	}
}

func TestBeforeStart(t *testing.T) {
	var srv Server
	if st := srv.Stats(); st != (Stats{}) {
		t.Errorf("a server that has not started counts %+v", st)
	}
	expectNoError(t, srv.Shutdown(context.Background()))
	srv.Addr, srv.Handler = "127.0.0.1:0", Base{}
	if err := srv.ListenAndServe(context.Background()); !errors.Is(err, ErrServerClosed) || !strings.Contains(err.Error(), "closed before it was started") {
		t.Errorf("a server that was closed first answers %v, want ErrServerClosed that says so", err)
	}
}

// A second ListenAndServe returns an error and leaves the first one's NetListener alone.
func TestServeTwiceOneListener(t *testing.T) {
	l := NewNetListener()
	s := startServer(t, &Server{Handler: l})
	if err := s.ListenAndServe(context.Background()); err == nil || !strings.Contains(err.Error(), "is already serving") {
		t.Errorf("a second ListenAndServe answers %v", err)
	}
	dial(t, s.addr)
	n, err := l.Accept()
	if err != nil {
		t.Fatalf("Accept after it: %v", err)
	}
	n.Close()
}

// Opened and killed connections leave no memory behind.
func TestConnectionsLeaveNothing(t *testing.T) {
	const conns, times = 300, 5
	forEachModel(t, func(t *testing.T, model string, loops int) {
		s := startServer(t, &Server{Model: model, Loops: loops})
		cycle := func() {
			open := make([]net.Conn, conns)
			for i := range open {
				c, err := net.Dial("tcp", s.addr) // without a cleanup, which would keep it
				requireNoError(t, err)
				_, err = io.WriteString(c, "hello\n")
				requireNoError(t, err)
				_, err = io.ReadFull(c, make([]byte, len("hello\n")))
				requireNoError(t, err)
				open[i] = c
			}
			for _, c := range open {
				(&testkit.Conn{Conn: c}).Reset()
			}
			waitFor(t, "connections are open after all were killed", func() bool { return s.Stats().Open == 0 })
		}
		for range min(runtime.GOMAXPROCS(0), 8) {
			cycle() // makes room for so many, which is kept: each processor keeps goroutines that have ended
		}
		const most = conns * times * 32 // a third of what a forgotten connection costs
		var grown int64
		for range 3 { // what has a bound, such as the goroutines that wait for use again, grows once
			before := liveHeapBytes()
			for range times {
				cycle()
			}
			if grown = liveHeapBytes() - before; grown <= most {
				return
			}
		}
		t.Errorf("%d connections have left %d bytes in the heap, more than %d", conns*times, grown, most)
	})
}

func liveHeapBytes() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A handler that does not return delays ListenAndServe, but neither Shutdown nor Close.
func TestShutdownWithStuckHandler(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, loops int) {
		t.Parallel()
		stuck, release := make(chan struct{}), make(chan struct{})
		s := startServer(t, &Server{Model: model, Loops: loops, Handler: Lines(MessageFunc(func(c *Conn, line []byte) {
			if string(line) == "hello" {
				close(stuck)
				<-release
			}
			echoLine(c, line)
		}))})
		dial(t, s.addr).Exchange("other", "other") // it may be behind the one that is stuck
		io.WriteString(dial(t, s.addr), "hello\n")
		<-stuck
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		err := s.Shutdown(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), fmt.Sprintf("and %d are still open", s.Stats().Open)) {
			t.Errorf("Shutdown answers %v; want an error that counts the %d connections that are open", err, s.Stats().Open)
		}
		close(release)
		expectNoError(t, s.waitResult(t))
	})
}

// A handler may close its server.
func TestCloseFromHandler(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, loops int) {
		t.Parallel()
		var srv *Server
		srv = &Server{Model: model, Loops: loops, Handler: Lines(MessageFunc(func(*Conn, []byte) { srv.Close() }))}
		s := startServer(t, srv)
		io.WriteString(dial(t, s.addr), "quit\n")
		expectNoError(t, s.waitResult(t))
	})
}

// wrappedHandler is a typical wrapper of a handler.
type wrappedHandler struct{ Handler }

// A wrapped framer still delivers the last line without an end.
func TestWrappedFramer(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, loops int) {
		s := startServer(t, &Server{Model: model, Loops: loops, Handler: wrappedHandler{Lines(MessageFunc(echoLine))}})
		c := dial(t, s.addr)
		c.Send("a\nlast")
		c.CloseWrite()
		c.ExpectEOF("a\nlast\n")
	})
}

// openCloseRecorder passes opened connections and close reasons to the test.
type openCloseRecorder struct {
	Handler
	opened func(*Conn)
	closed chan error
}

func (r *openCloseRecorder) Opened(c *Conn) { r.opened(c) }

func (r *openCloseRecorder) Closed(_ *Conn, why error) { r.closed <- why }

// A message from within a handler to thousands of connections fits into the default limits.
func TestBroadcastFromHandler(t *testing.T) {
	const members, size = 1000, 8 << 10
	testkit.ReserveDescriptors(t, 2*members+100)
	forEachModel(t, func(t *testing.T, model string, loops int) {
		var mu sync.Mutex
		refs := map[Ref]bool{}
		message := make([]byte, size)
		failed := make(chan error, 1)
		h := &openCloseRecorder{closed: make(chan error, 2*members), opened: func(c *Conn) {
			mu.Lock()
			refs[c.Ref()] = true
			mu.Unlock()
		}, Handler: Lines(MessageFunc(func(c *Conn, _ []byte) {
			mu.Lock()
			defer mu.Unlock()
			var err error
			for ref := range refs {
				err = errors.Join(err, ref.Send(message))
			}
			failed <- err
		}))}
		s := startServer(t, &Server{Model: model, Loops: loops, Handler: h})
		var read sync.WaitGroup
		conns := make([]*testkit.Conn, members)
		for i := range conns {
			c := dial(t, s.addr)
			conns[i] = c
			read.Go(func() {
				if n, err := io.ReadFull(c, make([]byte, size)); err != nil {
					t.Errorf("a member got %d of %d bytes: %v", n, size, err)
				}
			})
		}
		waitFor(t, "not all members are in", func() bool { return s.Stats().Open == members })
		conns[0].Send("now\n")
		expectNoError(t, testkit.Receive(t, failed, "the handler's answer"))
		read.Wait()
	})
}

func TestServeUnfitListener(t *testing.T) {
	srv := &Server{Handler: Base{}}
	if err := srv.Serve(context.Background(), nil); !errors.Is(err, ErrBadConfig) {
		t.Errorf("Serve on no listener: %v, want ErrBadConfig", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	requireNoError(t, err)
	defer l.Close()
	odd := struct{ net.Listener }{l}
	if err := srv.Serve(context.Background(), odd); !errors.Is(err, ErrBadConfig) || !strings.Contains(err.Error(), "struct") {
		t.Errorf("Serve on a listener of another type: %v, want ErrBadConfig with the type", err)
	}
}

// The rate limit of log messages applies to each loop and handler type separately.
func TestLogOfLoops(t *testing.T) {
	var out strings.Builder
	synctest.Test(t, func(*testing.T) { // where a second is not over before its time
		log := (&Server{Log: slog.New(slog.NewTextHandler(&out, nil))}).rateLimitedLogger()
		for loop := range 3 {
			for range 2 {
				log.Warn("loop is slow", "loop", loop)
			}
		}
	})
	if n := strings.Count(out.String(), "loop is slow"); n != 3 {
		t.Errorf("3 loops have said twice the same, and %d lines are written, want 3:\n%s", n, out.String())
	}
	out.Reset()
	synctest.Test(t, func(*testing.T) {
		log := (&Server{Log: slog.New(slog.NewTextHandler(&out, nil))}).rateLimitedLogger()
		for range 2 {
			for _, h := range []Handler{Base{}, Lines(MessageFunc(echoLine))} {
				log.Error("handler is wrong", "handler", handlerType(h))
			}
		}
	})
	if text := out.String(); strings.Count(text, "handler is wrong") != 2 || !strings.Contains(text, "tcp.Base") || !strings.Contains(text, "tcp.MessageFunc") {
		t.Errorf("want a line for each of two handlers; the log has\n%s", text)
	}
}
