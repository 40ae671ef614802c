package tcp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/pool"
)

// gatedHandler echoes lines. "block" first waits until the gate is closed.
type gatedHandler struct {
	gate    chan struct{}
	blocked chan bool  // for each "block": true if it waits, false if it was shed
	closed  chan error // close reasons
	sheds   chan error // reasons of shed messages other than "hello" and "block"
}

func newGatedHandler() *gatedHandler {
	return &gatedHandler{make(chan struct{}), make(chan bool, 10), make(chan error, 100), make(chan error, 100)}
}

func (*gatedHandler) Opened(*Conn) {}

func (g *gatedHandler) Message(c *Conn, msg []byte) {
	if string(msg) == "block" {
		g.blocked <- true
		<-g.gate
	}
	echoLine(c, msg)
}

func (g *gatedHandler) Closed(_ *Conn, why error) { g.closed <- why }

// sheddingHandler is a gatedHandler that answers shed messages with "busy".
type sheddingHandler struct{ *gatedHandler }

func (s sheddingHandler) Shed(c *Conn, msg []byte, why error) {
	switch string(msg) {
	case "hello": // it is only to get through
	case "block":
		defer func() { s.blocked <- false }()
	default:
		s.sheds <- why
	}
	fmt.Fprintf(c, "busy %s\n", msg)
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

// dialUntilServed connects and asks until it is served: the worker that has called Opened may not be free yet.
func dialUntilServed(t *testing.T, addr string) *testkit.Conn {
	t.Helper()
	c := dial(t, addr)
	waitFor(t, "a connection is not served", func() bool {
		c.Send("hello\n")
		return c.ReadLine() == "hello"
	})
	return c
}

func dialManyUntilServed(t *testing.T, addr string, n int) (conns []*testkit.Conn) {
	t.Helper()
	for range n {
		conns = append(conns, dialUntilServed(t, addr))
	}
	return conns
}

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

// singleWorker configures a pool of one worker without a queue.
var singleWorker = pool.Config{Max: 1, Queue: pool.NoQueue, FixedLimit: true, KeepQueued: true, FIFO: true}

// quickSheddingConfig configures a pool of one worker that sheds soon. The newest job remains queued.
var quickSheddingConfig = pool.Config{Max: 1, Queue: 10, Target: 100 * time.Microsecond, Interval: 100 * time.Microsecond,
	FixedLimit: true, FIFO: true}

// If the pool is full, a handler that sheds answers each message in order, with the usual framing.
func TestShedWhenFull(t *testing.T) {
	for name, wrap := range map[string]func(sheddingHandler) Handler{
		"Lines":   func(s sheddingHandler) Handler { return Lines(s) },
		"Split":   func(s sheddingHandler) Handler { return Split(bufio.ScanLines, s) },
		"Handler": func(s sheddingHandler) Handler { return rawSheddingHandler{s} },
	} {
		t.Run(name, func(t *testing.T) {
			forEachLoopModel(t, func(t *testing.T, model string) {
				g := newGatedHandler()
				s := startServer(t, &Server{Model: model, Loops: 1, Workers: newPool(t, singleWorker), Handler: wrap(sheddingHandler{g})})
				c := dialUntilServed(t, s.addr)
				a := g.blockWorker(t, s.addr)
				c.Send("x\ny\nha")
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
				reasons := g.expectShedReasons(t, pool.ErrFull)
				if st := s.Stats(); st.Shed == 0 || reasons != shed {
					t.Errorf("%d messages were shed: Shed was called %d times, and Stats.Shed is %d", shed, reasons, st.Shed)
				}
			})
		})
	}
}

// expectShedReasons checks the reasons of sheds, and returns their number.
func (g *gatedHandler) expectShedReasons(t *testing.T, want error) int {
	t.Helper()
	n := len(g.sheds)
	for range n {
		why := <-g.sheds
		if !errors.Is(why, ErrOverloaded) || errors.Is(why, pool.ErrFull) == errors.Is(why, pool.ErrShed) || !errors.Is(why, want) {
			t.Errorf("shed because of %v; want ErrOverloaded and %v", why, want)
		}
	}
	return n
}

// Jobs that the pool sheds after it has queued them are answered on their loop while the worker is busy.
func TestShedAfterAcceptance(t *testing.T) {
	forEachLoopModel(t, func(t *testing.T, model string) {
		g := newGatedHandler()
		s := startServer(t, &Server{Model: model, Loops: 1, Workers: newPool(t, quickSheddingConfig), Handler: Lines(sheddingHandler{g})})
		conns := dialManyUntilServed(t, s.addr, 3)
		a := g.blockWorker(t, s.addr)
		for i, c := range conns {
			before := s.Workers.Stats().Accepted
			c.Send(fmt.Sprintf("%d\n", i))
			waitFor(t, "the pool does not take it", func() bool { return s.Workers.Stats().Accepted > before })
		}
		conns[0].Expect("busy 0\n")
		conns[1].Expect("busy 1\n")
		close(g.gate)
		a.Expect("block\n")
		conns[2].Expect("2\n")
		g.expectShedReasons(t, pool.ErrShed)
	})
}
