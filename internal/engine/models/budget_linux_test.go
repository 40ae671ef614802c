package models_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/enginetest"
	"github.com/myriad-go/myriad/internal/engine/models"
	"github.com/myriad-go/myriad/internal/testkit"
)

var neverReading = flag.Int("neverreading", 300, "clients of TestBufferedIsTheHeap, each for 20 KiB of MaxBuffered")

// streamer sends to each connection on its own goroutine, as fast as the peer reads, once start is
// closed. All send the same bytes and so need no buffers.
type streamer struct {
	echo
	piece   []byte
	start   chan struct{}
	opened  chan engine.Ref
	sent    atomic.Int64
	running sync.WaitGroup
}

func (h *streamer) Opened(c *engine.Conn) {
	r := c.Ref()
	h.running.Go(func() {
		<-h.start
		for r.SendWait(context.Background(), h.piece) == nil {
			h.sent.Add(1)
		}
	})
	h.opened <- r
}

// forEachModelAndLoops runs a test on each model with 1, 2 and 4 loops.
func forEachModelAndLoops(t *testing.T, test func(t *testing.T, m engine.Model, loops int)) {
	for _, m := range models.All() {
		for _, loops := range []int{1, 2, 4} {
			if loops > 1 && !m.HasLoops {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d", m.Name, loops), func(t *testing.T) {
				if err := m.Available(); err != nil {
					t.Skip(err)
				}
				test(t, m, loops)
			})
		}
	}
}

// connectRaw opens a connection without memory in the process.
func connectRaw(t *testing.T, to net.Addr) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	testkit.RequireNoError(t, err)
	t.Cleanup(func() { syscall.Close(fd) })
	addr := &syscall.SockaddrInet4{Port: to.(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}}
	err = errors.Join(syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10), syscall.Connect(fd, addr))
	testkit.RequireNoError(t, err)
}

// TestBufferedIsTheHeap checks that data for clients that never read is counted from the moment it
// is accepted: the heap must have as much as is counted and at most MaxBuffered, while all loops
// are blocked and afterwards.
func TestBufferedIsTheHeap(t *testing.T) {
	forEachModelAndLoops(t, func(t *testing.T, m engine.Model, loops int) {
		clients := *neverReading
		budget := int64(clients) * 20 << 10
		limits := enginetest.Limits()
		limits.MaxConns, limits.MaxBuffered, limits.MaxMail = clients, int(budget), clients
		limits.HighWater, limits.LowWater = 64<<10, 32<<10
		h := &streamer{piece: make([]byte, 32<<10), start: make(chan struct{}), opened: make(chan engine.Ref)}
		e := startEngineWithLimits(t, m, engine.Config{
			Addr: "127.0.0.1:0", Handler: h, Limits: limits, Loops: loops, Socket: engine.Socket{SendBuffer: 4 << 10},
		})
		var refs []engine.Ref
		for range clients {
			connectRaw(t, e.Addr())
			refs = append(refs, testkit.Receive(t, h.opened, "a connection"))
		}
		release := make(chan struct{})
		for _, r := range refs {
			testkit.RequireNoError(t, r.Do(func(*engine.Conn) { <-release }))
		}
		idle := testkit.LiveHeapBytes()
		var last engine.Counts
		var sent int64
		rests := func() bool { // and checks what is counted
			before, was := last, sent
			counted := e.Counters()[engine.Buffered]
			held := testkit.LiveHeapBytes() - idle
			sent, last = h.sent.Load(), e.Counters()
			if was != sent || before != last {
				t.Logf("under way: %d open, the heap holds %d KB, %d to %d KB are counted", last[engine.Open], held>>10, counted>>10, last[engine.Buffered]>>10)
				return false
			}
			t.Logf("at rest: %d open, the heap holds %d KB, %d KB are counted", last[engine.Open], held>>10, counted>>10)
			if held > budget*3/2 {
				t.Errorf("the heap holds %d bytes, want at most 1.5 times %d", held, budget)
			}
			if off := held - counted; max(off, -off) > max(held, budget/4)/5 {
				t.Errorf("the heap holds %d bytes, and %d are counted; want no more than 20 %% between them", held, counted)
			}
			return true
		}
		close(h.start)
		testkit.WaitFor(t, "it does not come to rest while loops are held up", rests)
		close(release)
		testkit.WaitFor(t, "it does not come to rest", func() bool { return rests() && last.ClosedBy(engine.ClosedBudget) > 0 })
		enginetest.Kill(e)
		h.running.Wait()
		if n := e.Counters()[engine.Buffered]; n != 0 {
			t.Errorf("%d bytes are counted at the end, want 0", n)
		}
	})
}

// blockingHandler blocks until release is closed.
type blockingHandler struct {
	echo
	opened  chan engine.Ref
	release chan struct{}
}

func (h *blockingHandler) Opened(c *engine.Conn) { h.opened <- c.Ref() }
func (h *blockingHandler) Received(_ *engine.Conn, in []byte) int {
	<-h.release
	return len(in)
}

// TestBudgetOfBusyConnections checks that requests for connections with workers are counted and
// limited: those beyond MaxBuffered are dropped, and their connections are closed when they return.
func TestBudgetOfBusyConnections(t *testing.T) {
	forEachModelWithLoops(t, func(t *testing.T, m engine.Model) {
		const clients, each, piece = 100, 10, 32 << 10
		limits := enginetest.Limits()
		limits.MaxBuffered = clients * each * piece / 4
		h := &blockingHandler{opened: make(chan engine.Ref), release: make(chan struct{})}
		p := &droppingPool{}
		e := startEngineWithLimits(t, m, engine.Config{Addr: "127.0.0.1:0", Handler: h, Limits: limits, Loops: 2, Pool: p})
		var refs []engine.Ref
		var conns []*testkit.Conn
		for range clients {
			c := dial(t, e)
			c.Send("x")
			conns, refs = append(conns, c), append(refs, testkit.Receive(t, h.opened, "a connection"))
		}
		testkit.WaitFor(t, "some handlers do not run", func() bool { return e.Counters()[engine.BytesIn] == clients })
		for range each {
			for _, r := range refs {
				testkit.WaitFor(t, "there is no room", func() bool {
					err := r.Send(make([]byte, piece))
					if err != nil && !errors.Is(err, engine.ErrFull) {
						t.Fatal(err)
					}
					return err == nil
				})
				if n := e.Counters()[engine.Buffered]; n > int64(limits.MaxBuffered)*5/4 {
					t.Fatalf("%d bytes are counted, want at most %d or a little more", n, limits.MaxBuffered)
				}
			}
		}
		if n := e.Counters()[engine.Buffered]; n < int64(limits.MaxBuffered)/2 {
			t.Errorf("%d bytes are counted, want about %d", n, limits.MaxBuffered)
		}
		close(h.release)
		testkit.WaitFor(t, "no connection is closed for that", func() bool {
			n := e.Counters()
			return n.ClosedBy(engine.ClosedBudget) > clients/2 && n.ClosedBy(engine.ClosedBudget) == clients-n[engine.Open]
		})
		for _, c := range conns {
			c.Close()
		}
		testkit.ExpectNoError(t, e.Stop(context.Background()))
		p.running.Wait()
		if n := e.Counters()[engine.Buffered]; n != 0 {
			t.Errorf("%d bytes are counted at the end, want 0", n)
		}
	})
}
