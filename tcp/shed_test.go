package tcp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/pool"
)

// runOnLoopModels runs a test under each model that has loops.
func runOnLoopModels(t *testing.T, f func(t *testing.T, model string)) {
	t.Helper()
	for _, model := range Models()[1:] {
		t.Run(model, func(t *testing.T) { f(t, model) })
	}
}

// gatedHandler echoes lines and records its calls. "block" first waits until the gate is closed.
type gatedHandler struct {
	gate    chan struct{}
	blocked chan bool // for each "block": true if it waits, false if it was shed

	mu    sync.Mutex
	calls []string
	whys  []error // reasons of sheds and closes
	sheds int64   // calls of Shed
}

func newGatedHandler() *gatedHandler {
	return &gatedHandler{gate: make(chan struct{}), blocked: make(chan bool, 10)}
}

func (g *gatedHandler) recordCall(call string, why error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls = append(g.calls, call)
	if why != nil {
		g.whys = append(g.whys, why)
	}
}

// recordedCalls returns the calls and reasons so far.
func (g *gatedHandler) recordedCalls() (calls []string, whys []error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.calls), slices.Clone(g.whys)
}

func (g *gatedHandler) Opened(*Conn) { g.recordCall("Opened", nil) }

func (g *gatedHandler) Message(c *Conn, msg []byte) {
	g.recordCall(string(msg), nil)
	if string(msg) == "block" {
		g.blocked <- true
		<-g.gate
	}
	echoLine(c, msg)
}

func (g *gatedHandler) Closed(_ *Conn, why error) { g.recordCall("Closed", why) }

// sheddingHandler is a gatedHandler that answers shed messages with "busy", closes for "close"
// and panics for "panic".
type sheddingHandler struct{ *gatedHandler }

func (s sheddingHandler) Shed(c *Conn, msg []byte, why error) {
	s.mu.Lock()
	s.sheds++
	s.mu.Unlock()
	switch text := string(msg); text {
	case "hello": // it is only to get through
	case "block":
		defer func() { s.blocked <- false }()
	default:
		s.recordCall("shed "+text, why)
	}
	switch string(msg) {
	case "close":
		c.CloseWith(why)
	case "panic":
		panic("in Shed")
	default:
		fmt.Fprintf(c, "busy %s\n", msg)
	}
}

// rawSheddingHandler is a sheddingHandler without a framer.
type rawSheddingHandler struct{ sheddingHandler }

func (r rawSheddingHandler) Received(c *Conn, in []byte) (used int) {
	return r.handleLine(c, in, r.Message)
}

func (r rawSheddingHandler) Ended(_ *Conn, rest []byte) int { return len(rest) }

func (r rawSheddingHandler) Shed(c *Conn, in []byte, why error) (used int) {
	return r.handleLine(c, in, func(c *Conn, msg []byte) { r.sheddingHandler.Shed(c, msg, why) })
}

func (rawSheddingHandler) handleLine(c *Conn, in []byte, deliver func(*Conn, []byte)) int {
	line, _, ok := bytes.Cut(in, []byte("\n"))
	if !ok {
		return 0
	}
	deliver(c, line)
	return len(line) + 1
}

// dialUntilServed connects and asks until it is served: the worker that has called Opened may not
// be free yet.
func dialUntilServed(t *testing.T, addr string) *testkit.Conn {
	t.Helper()
	c := dial(t, addr)
	waitFor(t, "a connection is not served", func() bool {
		c.Send("hello\n")
		return c.ReadLine() == "hello"
	})
	return c
}

// blockWorker occupies a worker with a new connection.
func (g *gatedHandler) blockWorker(t *testing.T, addr string) *testkit.Conn {
	t.Helper()
	c := dialUntilServed(t, addr)
	c.Send("block\n")
	for !testkit.Receive(t, g.blocked, "a line that is to block a worker") {
		c.Expect("busy block\n")
		c.Send("block\n")
	}
	return c
}

func (g *gatedHandler) countCalls(method string) int {
	calls, _ := g.recordedCalls()
	return strings.Count(strings.Join(calls, " "), method)
}

// singleWorker configures a pool of one worker without a queue.
var singleWorker = pool.Config{Max: 1, Queue: pool.NoQueue, FixedLimit: true, KeepQueued: true, FIFO: true}

// If the pool is full, a handler that sheds answers each message in order, with the usual
// framing. Unused input is kept.
func TestShedWhenFull(t *testing.T) {
	for name, wrap := range map[string]func(sheddingHandler) Handler{
		"Lines":   func(s sheddingHandler) Handler { return Lines(s) },
		"Split":   func(s sheddingHandler) Handler { return Split(bufio.ScanLines, s) },
		"Handler": func(s sheddingHandler) Handler { return rawSheddingHandler{s} },
	} {
		t.Run(name, func(t *testing.T) {
			runOnLoopModels(t, func(t *testing.T, model string) {
				g := newGatedHandler()
				s := startServer(t, &Server{Model: model, Loops: 1, Workers: newPool(t, singleWorker), Handler: wrap(sheddingHandler{g})})
				c := dialUntilServed(t, s.addr)
				a := g.blockWorker(t, s.addr)
				io.WriteString(c, "x\ny\nha")
				c.Expect("busy x\nbusy y\n")
				shed := 2
				close(g.gate)
				a.Expect("block\n")
				c.Send("lf\n") // the worker may still be on its way
				got := c.ReadLine()
				if line, isBusy := strings.CutPrefix(got, "busy "); line != "half" {
					t.Errorf("got %q; want the line that came in two halves, served or busy", got)
				} else if isBusy {
					shed++
				}
				whys := g.expectShedReasons(t, pool.ErrFull)
				if st := s.Stats(); st.Shed == 0 || len(whys) != shed {
					t.Errorf("%d messages were shed: Shed was called %d times, and Stats.Shed is %d", shed, len(whys), st.Shed)
				}
			})
		})
	}
}

// expectShedReasons checks and returns the reasons of sheds.
func (g *gatedHandler) expectShedReasons(t *testing.T, want error) (whys []error) {
	t.Helper()
	_, whys = g.recordedCalls()
	for _, why := range whys {
		if !errors.Is(why, ErrOverloaded) || errors.Is(why, pool.ErrFull) == errors.Is(why, pool.ErrShed) || !errors.Is(why, want) {
			t.Errorf("shed because of %v; want ErrOverloaded and %v", why, want)
		}
	}
	return whys
}

// quickSheddingConfig configures a pool of one worker that sheds soon. The newest job remains
// queued.
var quickSheddingConfig = pool.Config{Max: 1, Queue: 10, Target: 100 * time.Microsecond, Interval: 100 * time.Microsecond,
	FixedLimit: true, FIFO: true}

// sendUntilQueued sends a line on an open connection, and waits until the pool has queued or shed
// it.
func sendUntilQueued(t *testing.T, s *started, c *testkit.Conn, line string) {
	t.Helper()
	st := s.Workers.Stats()
	io.WriteString(c, line)
	waitFor(t, "the pool does not take it", func() bool { return s.Workers.Stats().Accepted > st.Accepted })
}

// Jobs that the pool sheds after it has queued them are answered on their loop while the worker
// is busy.
func TestShedAfterAcceptance(t *testing.T) {
	runOnLoopModels(t, func(t *testing.T, model string) {
		g := newGatedHandler()
		s := startServer(t, &Server{Model: model, Loops: 1, Workers: newPool(t, quickSheddingConfig), Handler: Lines(sheddingHandler{g})})
		var conns []*testkit.Conn
		for range 3 {
			conns = append(conns, dialUntilServed(t, s.addr))
		}
		a := g.blockWorker(t, s.addr)
		for i, c := range conns {
			sendUntilQueued(t, s, c, fmt.Sprintf("%d\n", i))
		}
		conns[0].Expect("busy 0\n")
		conns[1].Expect("busy 1\n")
		close(g.gate)
		a.Expect("block\n")
		conns[2].Expect("2\n")
		g.expectShedReasons(t, pool.ErrShed)
	})
}

// With a handler that does not shed, input that the pool rejects or sheds waits.
func TestNothingIsLost(t *testing.T) {
	for name, cfg := range map[string]pool.Config{"full": singleWorker, "shed": quickSheddingConfig} {
		t.Run(name, func(t *testing.T) {
			runOnLoopModels(t, func(t *testing.T, model string) {
				g := newGatedHandler()
				s := startServer(t, &Server{Model: model, Loops: 1, Workers: newPool(t, cfg), Handler: Lines(g)})
				var conns []*testkit.Conn
				for range 5 {
					conns = append(conns, dialUntilServed(t, s.addr))
				}
				g.blockWorker(t, s.addr)
				for i, c := range conns {
					fmt.Fprintf(c, "%d\nand more\n", i)
				}
				if !cfg.KeepQueued {
					eventually(t, func() bool { // and once it sheds it refuses, too, what is more than it will have time for
						st := s.Workers.Stats()
						return st.Shed > 0 && st.Shed+st.Full > 20
					}, func() string { return fmt.Sprintf("the pool sheds nothing: %+v", s.Workers.Stats()) })
				}
				close(g.gate)
				for i, c := range conns {
					c.Expect(fmt.Sprintf("%d\nand more\n", i))
				}
				if st := s.Stats(); st.Shed != 0 {
					t.Errorf("Stats.Shed is %d without a ShedHandler", st.Shed)
				}
			})
		})
	}
}

// Only input is shed: Opened, Closed and the end wait for a worker, and a last line is handled
// together with the end.
func TestEventsAreNotShed(t *testing.T) {
	for name, cfg := range map[string]pool.Config{"full": singleWorker, "shed": quickSheddingConfig} {
		t.Run(name, func(t *testing.T) {
			runOnLoopModels(t, func(t *testing.T, model string) {
				g := newGatedHandler()
				s := startServer(t, &Server{Model: model, Loops: 1, Workers: newPool(t, cfg), Handler: Lines(sheddingHandler{g})})
				old := dialUntilServed(t, s.addr)
				a := g.blockWorker(t, s.addr)
				c := dial(t, s.addr)
				io.WriteString(c, "last words")
				c.CloseWrite()
				io.WriteString(old, "busy?\ntail")
				old.CloseWrite()
				if name == "full" {
					old.Expect("busy busy?\n")
				}
				waitFor(t, "it is not accepted", func() bool { return s.Stats().Open == 3 })
				if n := g.countCalls("Opened"); n != 2 {
					t.Errorf("Opened was called %d times while the only worker is busy, want 2", n)
				}
				close(g.gate)
				c.Expect("last words\n")
				if name == "full" { // otherwise the pool keeps the last one
					old.Expect("tail\n")
				} else {
					if text := strings.TrimPrefix(old.ExpectClosed(), "busy "); text != "busy?\ntail\n" {
						t.Errorf("got %q; want the first line served or busy, and then the last", text)
					}
				}
				for _, c := range []*testkit.Conn{a, c, old} {
					c.Close()
				}
				waitFor(t, "connections stay open", func() bool { return s.Stats().Open == 0 })
				// What is shed of the last words is no message yet.
				if st := s.Stats(); st.Shed > g.sheds+1 {
					t.Errorf("Stats.Shed is %d after %d calls of Shed: something else was shed", st.Shed, g.sheds)
				}
				if o, c := g.countCalls("Opened"), g.countCalls("Closed"); o != 3 || c != 3 {
					t.Errorf("Opened was called %d times, and Closed %d times, for 3 connections", o, c)
				}
			})
		})
	}
}

// Shed may close its connection, and its panic affects no other one.
func TestShedCloses(t *testing.T) {
	runOnLoopModels(t, func(t *testing.T, model string) {
		g := newGatedHandler()
		s := startServer(t, &Server{Model: model, Loops: 1, Workers: newPool(t, singleWorker), Handler: Lines(sheddingHandler{g})})
		words := []string{"close", "panic", "stay"}
		var conns []*testkit.Conn
		for range words {
			conns = append(conns, dialUntilServed(t, s.addr))
		}
		g.blockWorker(t, s.addr)
		for i, c := range conns {
			io.WriteString(c, words[i]+"\n")
		}
		conns[2].Expect("busy stay\n")
		waitFor(t, "not all three are shed", func() bool { _, whys := g.recordedCalls(); return len(whys) == 3 })
		close(g.gate)
		for _, c := range conns[:2] {
			if got := c.ExpectClosed(); got != "" {
				t.Errorf("got %q; want the end", got)
			}
			c.Close()
		}
		waitFor(t, "not both are closed", func() bool { st := s.Stats().Closed; return st.Handler+st.Panic == 2 })
		_, whys := g.recordedCalls()
		var overload, panicked int
		for _, why := range whys[3:] { // behind those of the three sheds
			if _, ok := errors.AsType[*PanicError](why); ok {
				panicked++
			} else if errors.Is(why, ErrOverloaded) {
				overload++
			}
		}
		if overload != 1 || panicked != 1 || s.Stats().Panics != 1 {
			t.Errorf("closed because of %v; want ErrOverloaded and a *PanicError", whys[3:])
		}
	})
}

// A Shed method with the signature of the other interface is rejected under every model, with and
// without workers, unless it is hidden.
func TestWrongShed(t *testing.T) {
	for _, c := range []struct {
		h     Handler
		wants string // "" if it is right
	}{
		{Lines(oddShedding{}), "expected that of MessageShedHandler"},
		{Split(bufio.ScanLines, oddShedding{}), "expected that of MessageShedHandler"},
		{&embedsShed{}, "expected that of ShedHandler"},
		{struct{ Handler }{&embedsShed{}}, ""},
		{rawSheddingHandler{}, ""},
		{Lines(busyShedder{}), ""},
		{Lines(MessageFunc(echoLine)), ""},
		{Base{}, ""},
	} {
		if c.wants == "" {
			if err := (&Server{Handler: c.h}).checkShedSignature(); err != nil {
				t.Errorf("%T: %v", c.h, err)
			}
			continue
		}
		for _, model := range Models() {
			srv := &Server{Addr: "127.0.0.1:0", Handler: c.h, Model: model}
			srv.Listening = func(net.Addr) { go srv.Close() }
			if err := srv.ListenAndServe(context.Background()); !errors.Is(err, ErrBadConfig) || !strings.Contains(err.Error(), c.wants) {
				t.Errorf("%T, %s: %v; want ErrBadConfig that says %q", c.h, model, err, c.wants)
			}
		}
	}
}

// oddShedding is a MessageHandler with the Shed method of a Handler.
type oddShedding struct{ MessageFunc }

func (oddShedding) Shed(*Conn, []byte, error) int { return 0 }

// embedsShed is a Handler that embeds the Shed method of a MessageHandler.
type embedsShed struct {
	Base
	messages
}

type messages struct{}

func (messages) Shed(*Conn, []byte, error) {}
