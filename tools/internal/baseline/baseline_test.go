package baseline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/internal/lab/app"
)

// asWorker makes the test binary a process of the design Prefork, which serves the app that
// it names; "fail" has it fail.
const asWorker = "MYRIAD_BASELINE_TEST_WORKER"

func TestMain(m *testing.M) {
	name := os.Getenv(asWorker)
	if name == "" {
		testkit.Main(m)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	ln, err := InheritedListener()
	if err == nil && name != "fail" {
		err = Serve(ctx, ln, Options{App: name, Design: OneEpoll})
	}
	if err != nil || name == "fail" {
		os.Exit(3)
	}
}

func startServe(t *testing.T, o Options) (addr string, end func() error) {
	t.Helper()
	ln := testkit.Must(o.ListenForDesign(t.Context(), "127.0.0.1:0"))(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, ln, o) }()
	end = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { end() })
	return ln.Addr().String(), end
}

// Each of several loops has a listener of its own.
func TestEpolls(t *testing.T) {
	if !hasEpoll {
		t.Skip("this system has no epoll")
	}
	const loops = 10
	addr, _ := startServe(t, Options{App: app.Echo, Design: Epolls, Loops: loops})
	local := fmt.Sprintf("0100007F:%04X 00000000:0000 0A", testkit.Must(net.ResolveTCPAddr("tcp", addr))(t).Port)
	testkit.WaitFor(t, "a listener for each loop", func() bool {
		return strings.Count(string(testkit.Must(os.ReadFile("/proc/net/tcp"))(t)), local) == loops
	})
}

// Every design serves every app that it has, and ends in order with its connections.
func TestServe(t *testing.T) {
	all := designs
	if !hasEpoll {
		all = all[:1]
	}
	for _, design := range all {
		for _, name := range app.Names {
			o := Options{App: name, Design: design}
			if design == Prefork {
				t.Setenv(asWorker, name)
				o.Prefork = &PreforkOptions{Processes: 2, Command: []string{os.Args[0]}}
			}
			if o.Validate() != nil {
				continue // another design has it
			}
			addr, end := startServe(t, o)
			conn := testkit.Dial(t, addr)
			times := 3 // on a connection that it knows
			if name == app.Sink || name == app.Wait || name == app.Pow {
				times = 1 // it ends with its client, or takes long
			}
			for range times {
				if err := app.CheckServerSpeaksApp(conn.Conn, name); err != nil {
					t.Errorf("%s, %s: %v", design, name, err)
				}
			}
			if err := end(); err != nil {
				t.Errorf("%s, %s: ended with %v", design, name, err)
			}
			if got := conn.ExpectClosed(); got != "" {
				t.Errorf("%s, %s: %q after the end, want the connection closed", design, name, got)
			}
		}
	}
}

// Answers come in order, once each, whatever the pieces are that the lines come in; a line
// that is too long ends its connection, and no other.
func TestLines(t *testing.T) {
	all := []string{PerConn, OneEpoll, Epolls, Reactor}
	if !hasEpoll {
		all = all[:1]
	}
	var text strings.Builder
	for i := range 500 {
		fmt.Fprintf(&text, "line %d\n", i)
	}
	for _, design := range all {
		addr, _ := startServe(t, Options{App: app.Lines, Design: design, Buffer: MinBuffer})
		long := testkit.Dial(t, addr)
		long.Send(strings.Repeat("x", MinBuffer))
		if got := long.ExpectClosed(); got != "" {
			t.Errorf("%s: got %q for a line that is too long, want the connection closed", design, got)
		}
		var wait sync.WaitGroup
		for i := range 20 {
			conn := testkit.Dial(t, addr)
			wait.Go(func() {
				for rest := text.String(); rest != ""; {
					piece := rest[:min(len(rest), 1+(i*7+len(rest))%30)]
					io.WriteString(conn, piece)
					rest = rest[len(piece):]
				}
			})
			wait.Go(func() {
				got := make([]byte, text.Len())
				if _, err := io.ReadFull(conn, got); err != nil || string(got) != text.String() {
					t.Errorf("%s: got %q, %v", design, got, err)
				}
			})
		}
		wait.Wait()
	}
}

// The published server does not answer the last nine of 19 lines, until another comes.
func TestTenth(t *testing.T) {
	addr, _ := startServe(t, Options{App: app.Lines, Flush: FlushTenth})
	conn := testkit.Dial(t, addr)
	conn.Send(strings.Repeat("ping\n", 19))
	conn.Expect(strings.Repeat("ping\n", 10))
	conn.Send("pong\n")
	conn.Expect(strings.Repeat("ping\n", 9) + "pong\n")
}

// What of a prefork server fails is its error.
func TestPreforkFails(t *testing.T) {
	if runtime.GOOS != "linux" {
		return
	}
	t.Setenv(asWorker, "fail")
	for command, says := range map[string]string{"/does/not/exist": "no such file", os.Args[0]: "a worker process has exited: exit status 3"} {
		o := Options{App: app.Echo, Design: Prefork, Prefork: &PreforkOptions{Processes: 3, Command: []string{command}}}
		ln := testkit.Must(o.ListenForDesign(t.Context(), "127.0.0.1:0"))(t)
		testkit.ExpectError(t, command, Serve(t.Context(), ln, o), says)
	}
}

// A heartbeat is sent at each tick, whatever the client does, and a connection ends whose client is silent for three.
func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := net.Pipe()
		ended := make(chan time.Time, 1)
		go func() {
			withHeartbeatsAndReadDeadline(discardUntilError, time.Second)(server, MinBuffer)
			ended <- time.Now()
		}()
		begin := time.Now()
		got := make([]byte, len(app.Heartbeat))
		for i := 1; i <= 5; i++ {
			if _, err := io.ReadFull(client, got); err != nil || string(got) != app.Heartbeat {
				t.Fatalf("got %q, %v", got, err)
			}
			if at := time.Since(begin); at != time.Duration(i)*time.Second {
				t.Errorf("heartbeat %d came after %v", i, at)
			}
			if i <= 2 {
				time.Sleep(time.Second / 2)
				io.WriteString(client, app.HeartbeatAnswer)
			}
		}
		if _, err := client.Read(got); !errors.Is(err, io.EOF) { // the last byte was sent at 2.5 s
			t.Errorf("got %v, want the end", err)
		}
		if at := (<-ended).Sub(begin); at != 5500*time.Millisecond {
			t.Errorf("ended after %v, want 5.5 s", at)
		}
	})
}

// Batches and a heap send a heartbeat on each connection, and end connections whose client is silent or gone.
func TestSharedHeartbeats(t *testing.T) {
	for _, shape := range []string{HeartbeatBatches, HeartbeatHeap} {
		addr, _ := startServe(t, Options{App: app.Sink, Heartbeat: minHeartbeat, HeartbeatBy: shape})
		testkit.Dial(t, addr).Close()
		for range 3 {
			conn := testkit.Dial(t, addr)
			conn.Expect(strings.Repeat(app.Heartbeat, 2))
			if _, err := io.Copy(io.Discard, conn); err != nil {
				t.Errorf("%s: got %v, want the end of a silent connection", shape, err)
			}
		}
	}
}

// A deadline ends a connection whose client is silent.
func TestDeadline(t *testing.T) {
	addr, _ := startServe(t, Options{App: app.Echo, Deadline: 50 * time.Millisecond})
	conn := testkit.Dial(t, addr)
	conn.Send("a")
	conn.Expect("a")
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the end", err)
	}
}

// listenerWithoutDescriptors has none for the first connections.
type listenerWithoutDescriptors struct {
	net.Listener
	failures int
}

func (l *listenerWithoutDescriptors) Accept() (net.Conn, error) {
	if l.failures--; l.failures >= 0 {
		return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return l.Listener.Accept()
}

// A lack of descriptors does not end the server: the client waits.
func TestNoDescriptors(t *testing.T) {
	ln := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, &listenerWithoutDescriptors{ln, 3}, Options{App: app.Echo}) }()
	conn := testkit.Dial(t, ln.Addr().String())
	conn.Send("a")
	conn.Expect("a")
	cancel()
	testkit.ExpectNoError(t, <-ended)
}

// The admin address says how many connections are open, and ends with the server.
func TestAdmin(t *testing.T) {
	shown := make(chan net.Addr, 1)
	addr, end := startServe(t, Options{App: app.Echo, Admin: "127.0.0.1:0", AdminListening: func(a net.Addr) { shown <- a }})
	admin := (<-shown).String()
	conn := testkit.Dial(t, addr)
	conn.Send("a")
	conn.Expect("a") // it has been accepted
	metrics := testkit.Dial(t, admin)
	metrics.Send("GET /metrics HTTP/1.0\r\n\r\n")
	if _, text := metrics.ReadResponse(); !strings.Contains(text, "\nmyriad_connections 1\n") {
		t.Errorf("one connection is not told: %s", text)
	}
	testkit.ExpectNoError(t, end())
	if conn, err := net.Dial("tcp", admin); err == nil {
		conn.Close()
		t.Error("the metrics are there after the end")
	}
}

func TestCheck(t *testing.T) {
	prefork := &PreforkOptions{Processes: 1, Command: []string{"server"}}
	for _, o := range []Options{
		{App: "ftp"}, {App: app.Echo, Buffer: MinBuffer - 1}, {App: app.Echo, Buffer: MaxBuffer + 1},
		{App: app.Echo, Heartbeat: time.Millisecond}, {App: app.HTTP, Heartbeat: time.Second}, {App: app.Echo, Deadline: -1},
		{App: app.Echo, HeartbeatBy: HeartbeatHeap}, {App: app.Echo, Deadline: time.Second, Heartbeat: time.Second}, {App: app.HTTP, Admin: "127.0.0.1:0"},
		{App: app.Lines, Flush: "often"}, {App: app.Echo, Flush: FlushTenth}, {App: app.Echo, Design: "threads"}, {App: app.Echo, Design: Prefork},
		{App: app.Echo, Design: OneEpoll, Prefork: prefork}, {App: app.HTTP, Design: OneEpoll}, {App: app.Sink, Design: Reactor},
		{App: app.Lines, Design: Epolls, Flush: FlushTenth}, {App: app.Lines, Design: OneEpoll, Admin: "127.0.0.1:0"},
		{App: app.Echo, Design: Prefork, Prefork: &PreforkOptions{Command: prefork.Command}},
		{App: app.Echo, Design: Prefork, Prefork: &PreforkOptions{Processes: maxPreforkProcesses + 1, Command: prefork.Command}},
		{App: app.Echo, Design: Prefork, Prefork: &PreforkOptions{Processes: 1}},
		{App: app.Echo, Design: Epolls, Loops: MaxLoops + 1},
	} {
		if err := o.Validate(); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}

func TestPark(t *testing.T) {
	var seen []string
	goroutines := 0
	err := ParkGoroutines(t.Context(), 100, func(checkpoint string) error {
		seen = append(seen, checkpoint)
		goroutines = runtime.NumGoroutine() - goroutines
		return nil
	})
	if err != nil || strings.Join(seen, " ") != "ready parked" || goroutines < 90 { // others may have ended meanwhile
		t.Errorf("got %q and %d goroutines more, %v, want two samples and 100", seen, goroutines, err)
	}
	broken := errors.New("broken")
	if err := ParkGoroutines(t.Context(), 1, func(string) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("got %v, want what the sample said", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, n := range []int{0, MaxParked + 1} {
		if ParkGoroutines(t.Context(), n, func(string) error { return nil }) == nil {
			t.Errorf("%d goroutines: no error", n)
		}
	}
	if err := ParkGoroutines(ctx, 5, func(string) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

var usedBuffer []byte

// BenchmarkBuffer gets a connection's buffer: a new one, one of a pool of slices, as published, or one of a pool of
// pointers.
func BenchmarkBuffer(b *testing.B) {
	use := func(buf []byte) { usedBuffer = buf } // the buffer escapes, as with a net.Conn
	b.Run("new", func(b *testing.B) {
		for b.Loop() {
			use(make([]byte, DefaultBuffer))
		}
	})
	b.Run("pool of slices", func(b *testing.B) {
		p := sync.Pool{New: func() any { return make([]byte, DefaultBuffer) }}
		for b.Loop() {
			buf := p.Get().([]byte)
			use(buf)
			//lint:ignore SA6002 this is what the benchmark shows
			p.Put(buf)
		}
	})
	b.Run("pool of pointers", func(b *testing.B) {
		p := sync.Pool{New: func() any { return new([DefaultBuffer]byte) }}
		for b.Loop() {
			buf := p.Get().(*[DefaultBuffer]byte)
			use(buf[:])
			p.Put(buf)
		}
	})
}
