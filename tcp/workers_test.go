package tcp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/pool"
)

// Two servers share a pool: a connection of one that waits for the pool is served when the other
// frees a worker.
func TestSharedPool(t *testing.T) {
	runOnLoopModels(t, func(t *testing.T, model string) {
		p := newPool(t, singleWorker)
		g := newGatedHandler()
		first := startServer(t, &Server{Model: model, Loops: 1, Workers: p, Handler: Lines(g)})
		second := startServer(t, &Server{Model: model, Loops: 1, Workers: p})
		c := dialUntilServed(t, second.addr)
		a := g.blockWorker(t, first.addr)
		io.WriteString(c, "is there room?\n")
		waitFor(t, "the pool refuses nothing", func() bool { return p.Stats().Full > 0 })
		close(g.gate)
		a.Expect("block\n")
		c.Expect("is there room?\n")
		dialUntilServed(t, first.addr)
	})
}

// echoSlowly takes 10 µs for each line.
func echoSlowly(c *Conn, line []byte) {
	for end := time.Now().Add(10 * time.Microsecond); time.Now().Before(end); {
	}
	echoLine(c, line)
}

// busyShedder answers shed messages with "busy".
type busyShedder struct{ MessageFunc }

func (busyShedder) Shed(c *Conn, msg []byte, _ error) { fmt.Fprintf(c, "busy %s\n", msg) }

// If the pool is closed too early, each connection closes with that reason at the next call of
// its handler, which is called for that; the log has one message.
func TestPoolClosedEarly(t *testing.T) {
	runOnLoopModels(t, func(t *testing.T, model string) {
		g := newGatedHandler()
		p, err := pool.New(pool.Config{Max: 1, Queue: 3, FixedLimit: true, KeepQueued: true, FIFO: true})
		requireNoError(t, err)
		var log testkit.Buffer
		s := startServer(t, &Server{Model: model, Loops: 1, Workers: p, Handler: Lines(g), Log: slog.New(slog.NewTextHandler(&log, nil))})
		idle, queue, reset, waits := dialUntilServed(t, s.addr), dialUntilServed(t, s.addr), dialUntilServed(t, s.addr), dialUntilServed(t, s.addr)
		a := g.blockWorker(t, s.addr)
		io.WriteString(queue, "for the queue\n")
		waitFor(t, "the line does not come to the queue", func() bool { return p.Stats().Queued == 1 })
		fresh := dial(t, s.addr) // its Opened is to wait there, too
		waitFor(t, "the new connection does not come to the queue", func() bool { return p.Stats().Queued == 2 })
		reset.Reset() // so is its Closed
		waitFor(t, "the end of a connection does not come to the queue", func() bool { return p.Stats().Queued == 3 })
		io.WriteString(waits, "for room\n")
		waitFor(t, "the pool refuses nothing", func() bool { return p.Stats().Full > 0 })
		ended, end := context.WithCancel(context.Background())
		end()
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			p.Close(ended)
		}()
		wantEnd := func(conns ...*testkit.Conn) {
			t.Helper()
			for _, c := range conns {
				if got := c.ExpectClosed(); got != "" {
					t.Errorf("got %q; want the end", got)
				}
			}
		}
		wantEnd(queue, fresh, waits)
		close(g.gate)
		<-closed
		a.Expect("block\n")
		late := dial(t, s.addr)
		io.WriteString(idle, "anybody?\n")
		a.CloseWrite()
		wantEnd(idle, late, a)
		waitFor(t, "connections are left", func() bool { return s.Stats().Open == 0 })
		_, whys := g.recordedCalls()
		if n := g.countCalls("Opened"); n != 7 || len(whys) != 7 {
			t.Errorf("%d Opened and %d Closed for 7 connections", n, len(whys))
		}
		for _, why := range whys {
			if !errors.Is(why, ErrWorkersClosed) && why != syscall.ECONNRESET {
				t.Errorf("closed because of %v, want ErrWorkersClosed, or the reset", why)
			}
		}
		if st := s.Stats(); st.Closed.Other != 6 || st.Closed.Reset != 1 {
			t.Errorf("counted %+v, want 6 under Other and a reset", st.Closed)
		}
		if n := strings.Count(log.String(), "was closed before the server:"); n != 1 {
			t.Errorf("the log says so %d times, want once:\n%s", n, log.String())
		}
		expectNoError(t, s.Shutdown(context.Background()))
	})
}

// A server can be closed while another server's handler occupies the only worker of their pool.
// Pending input, Opened and Closed no longer wait: each connection gets both Opened and Closed,
// with its own reason.
func TestEndsWhileOthersHoldThePool(t *testing.T) {
	for name, wrap := range map[string]func(*gatedHandler) MessageHandler{
		"waits": func(g *gatedHandler) MessageHandler { return g },
		"sheds": func(g *gatedHandler) MessageHandler { return sheddingHandler{g} },
	} {
		t.Run(name, func(t *testing.T) {
			runOnLoopModels(t, func(t *testing.T, model string) {
				p := newPool(t, singleWorker)
				other, g := newGatedHandler(), newGatedHandler()
				holder := startServer(t, &Server{Model: model, Loops: 1, Workers: p, Handler: Lines(other)})
				s := startServer(t, &Server{Model: model, Loops: 1, Workers: p, Handler: Lines(wrap(g))})
				idle, waits, reset := dialUntilServed(t, s.addr), dialUntilServed(t, s.addr), dialUntilServed(t, s.addr)
				a := other.blockWorker(t, holder.addr)
				letGo := sync.OnceFunc(func() { close(other.gate) })
				t.Cleanup(letGo)
				full := func(what string, do func()) {
					before := p.Stats().Full
					do()
					eventually(t, func() bool { return p.Stats().Full > before }, func() string { return what + " finds room" })
				}
				full("Closed", func() {
					reset.Reset()
				})
				var fresh *testkit.Conn
				full("Opened", func() { fresh = dial(t, s.addr) })
				full("a line", func() { io.WriteString(waits, "for room\n") })

				ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
				defer cancel()
				err := s.Shutdown(ctx)
				if !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "not returned") {
					t.Errorf("Shutdown: %v; want connections that were cut off, and no handler that has not returned", err)
				}
				s.waitResult(t)
				if st := s.Stats(); st.Open != 0 {
					t.Errorf("%d connections are open at the end", st.Open)
				}
				for _, c := range []*testkit.Conn{idle, waits, fresh} {
					if got := c.ExpectClosed(); got != "" && got != "busy for room\n" {
						t.Errorf("got %q; want the end", got)
					}
				}
				_, whys := g.recordedCalls()
				whys = slices.DeleteFunc(whys, func(why error) bool { return errors.Is(why, ErrOverloaded) })
				if n := g.countCalls("Opened"); n != 4 || len(whys) != 4 {
					t.Errorf("%d Opened and %d Closed for 4 connections", n, len(whys))
				}
				for _, why := range whys {
					if why != ErrServerClosed && why != syscall.ECONNRESET {
						t.Errorf("closed because of %v, want ErrServerClosed, or the reset", why)
					}
				}
				letGo()
				a.Expect("block\n")
				a.Exchange("the other server goes on", "the other server goes on")
			})
		})
	}
}

// Opened and Closed are called in spite of a flood of shed input, whatever the pool's
// configuration.
func TestEventsGetOn(t *testing.T) {
	for name, cfg := range map[string]pool.Config{"all rules": {}, "Shedding alone": {FixedLimit: true, FIFO: true}, "no rules": {FixedLimit: true, KeepQueued: true, FIFO: true}} {
		cfg.Max, cfg.Queue, cfg.Target, cfg.Interval = 1, 8, 100*time.Microsecond, 100*time.Microsecond
		t.Run(name, func(t *testing.T) {
			runOnLoopModels(t, func(t *testing.T, model string) {
				p := newPool(t, cfg)
				var opened, closed atomic.Int64
				s := startServer(t, &Server{Model: model, Loops: 1, Workers: p,
					Handler: Lines(countingHandler{busyShedder{MessageFunc(echoSlowly)}, &opened, &closed})})
				ended, end := context.WithCancel(context.Background())
				var floods sync.WaitGroup
				defer floods.Wait()
				defer end()
				for range 16 {
					c := dial(t, s.addr)
					floods.Go(func() { floodLines(ended, c) })
				}
				waitFor(t, "nothing is shed", func() bool { return s.Stats().Shed > 100 })
				for range 20 {
					c := dial(t, s.addr)
					c.Send("any answer\n")
					if got := c.ReadLine(); !strings.HasSuffix(got, "any answer") {
						t.Fatalf("got %q; want an answer", got)
					}
					c.Close()
				}
				eventually(t, func() bool { return opened.Load() == 36 && closed.Load() == 20 },
					func() string {
						return fmt.Sprintf("%d Opened and %d Closed of 36 and 20", opened.Load(), closed.Load())
					})
			})
		})
	}
}

// floodLines sends lines and reads the answers until ctx ends.
func floodLines(ctx context.Context, c net.Conn) {
	defer context.AfterFunc(ctx, func() { c.Close() })()
	lines, in := bytes.Repeat([]byte("x\n"), 10), bufio.NewReader(c)
	for {
		if _, err := c.Write(lines); err != nil {
			return
		}
		for range 10 {
			if _, err := in.ReadString('\n'); err != nil {
				return
			}
		}
	}
}

// countingHandler counts its connections.
type countingHandler struct {
	busyShedder
	opened, closed *atomic.Int64
}

func (h countingHandler) Opened(*Conn) { h.opened.Add(1) }

func (h countingHandler) Closed(*Conn, error) { h.closed.Add(1) }

// A handler that ends its goroutine closes only its own connection, wherever it runs.
func TestGoexit(t *testing.T) {
	forEachSetup(t, func(t *testing.T, srv *Server) {
		whys := make(chan error, 2)
		srv.Handler = Lines(exitRecorder{MessageFunc(func(c *Conn, line []byte) {
			if string(line) == "exit" {
				runtime.Goexit()
			}
			echoLine(c, line)
		}), whys})
		s := startServer(t, srv)
		other := dial(t, s.addr)
		other.Exchange("before", "before")
		for range 3 {
			c := dial(t, s.addr)
			c.Exchange("hello", "hello")
			io.WriteString(c, "exit\n")
			c.ExpectClosed()
			var panicked *PanicError
			if why := testkit.Receive(t, whys, "the end"); !errors.As(why, &panicked) || panicked.Value != any(ErrGoexit) || !strings.Contains(why.Error(), "runtime.Goexit") {
				t.Errorf("closed because of %v; want ErrGoexit", why)
			}
			other.Exchange("after", "after")
		}
		testkit.WaitFor(t, "not 3 panics and 3 connections closed for them are counted", func() bool {
			n := s.Stats()
			return n.Panics == 3 && n.Closed.Panic == 3
		})
	})
}

// exitRecorder records why its connections close.
type exitRecorder struct {
	MessageFunc
	whys chan<- error
}

func (h exitRecorder) Closed(_ *Conn, why error) {
	if why != ErrServerClosed && why != io.EOF {
		h.whys <- why
	}
}

// The goroutine model does not use the pool.
func TestPoolOfGoroutines(t *testing.T) {
	p := newPool(t, singleWorker)
	s := startServer(t, &Server{Model: Goroutine, Workers: p, Handler: Lines(busyShedder{MessageFunc(echoLine)})})
	dial(t, s.addr).Exchange("hello", "hello")
	if st := p.Stats(); st.Accepted != 0 {
		t.Errorf("the pool has run %d jobs of the goroutine model", st.Accepted)
	}
}

// Each returns even if a connection with mail from it closes on a worker meanwhile, and the
// connection's successor in the same slot closes properly: the reservation of the first one was
// released.
func TestEachWhileClosing(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, _ int) {
		quit := Lines(MessageFunc(func(c *Conn, line []byte) { c.Close() }))
		s := startServer(t, &Server{Model: model, Loops: 1, Workers: newPool(t, plainPoolConfig(4, 1024)), Handler: quit})
		for range 300 {
			c := dial(t, s.addr)
			io.WriteString(c, "quit\n")
			io.Copy(io.Discard, c) // it lingers, until we end
			done := make(chan error, 1)
			go func() { done <- s.Each(t.Context(), func(*Conn) {}) }()
			c.Close()
			if err := testkit.Receive(t, done, "Each returns"); err != nil {
				t.Fatal(err)
			}
		}
		waitFor(t, "connections are left", func() bool { return s.Stats().Open == 0 })
	})
}
