package tcp

import (
	"context"
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/pool"
)

// If the pool is closed too early, each connection closes with that reason at the next call of
// its handler, which is called for that; the log has one message.
func TestPoolClosedEarly(t *testing.T) {
	t.Parallel() // mostly waits
	forEachLoopModel(t, func(t *testing.T, model string) {
		g := newGatedHandler()
		p, err := pool.New(plainPoolConfig(1, 3))
		requireNoError(t, err)
		var log logRecorder
		s := startServer(t, &Server{Model: model, Loops: 1, Workers: p, Handler: Lines(g), Log: log.newLogger()})
		conns := dialManyUntilServed(t, s.addr, 4)
		idle, queue, reset, waits := conns[0], conns[1], conns[2], conns[3]
		a := g.blockWorker(t, s.addr)
		queued := func(n int) {
			t.Helper()
			waitFor(t, "it does not come to the queue", func() bool { return p.Stats().Queued == n })
		}
		queue.Send("for the queue\n")
		queued(1)
		fresh := dial(t, s.addr) // its Opened is to wait there, too
		queued(2)
		reset.Reset() // so is its Closed
		queued(3)
		waits.Send("for room\n")
		waitFor(t, "the pool refuses nothing", func() bool { return p.Stats().Full > 0 })
		ended, end := context.WithCancel(context.Background())
		end()
		var closing sync.WaitGroup
		closing.Go(func() { p.Close(ended) })
		expectClosedWithoutOutput(t, queue, fresh, waits)
		close(g.gate)
		closing.Wait()
		a.Expect("block\n")
		late := dial(t, s.addr)
		idle.Send("anybody?\n")
		a.CloseWrite()
		expectClosedWithoutOutput(t, idle, late, a)
		s.waitOpen(t, 0)
		for range 7 {
			why := testkit.Receive(t, g.closed, "Closed")
			if why != ErrWorkersClosed && !errors.Is(why, syscall.ECONNRESET) {
				t.Errorf("closed because of %v; want ErrWorkersClosed or a reset", why)
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

// The goroutine model does not use the pool.
func TestPoolOfGoroutines(t *testing.T) {
	p := newPool(t, singleWorker)
	s := startServer(t, &Server{Model: Goroutine, Workers: p})
	dial(t, s.addr).ExchangeLine("hello", "hello")
	expectEqual(t, "jobs of the goroutine model in the pool", p.Stats().Accepted, 0)
}
