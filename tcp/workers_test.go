package tcp

import (
	"context"
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

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
		g.expectClosed(t, 7, ErrWorkersClosed, syscall.ECONNRESET)
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
func TestEndsWhileOthersHoldThePool(t *testing.T) {
	forEachLoopModel(t, func(t *testing.T, model string) {
		p := newPool(t, singleWorker)
		other, g := newGatedHandler(), newGatedHandler()
		holder := startServer(t, &Server{Model: model, Loops: 1, Workers: p, Handler: Lines(other)})
		s := startServer(t, &Server{Model: model, Loops: 1, Workers: p, Handler: Lines(g)})
		conns := dialManyUntilServed(t, s.addr, 3)
		idle, waits, reset := conns[0], conns[1], conns[2]
		a := other.blockWorker(t, holder.addr)
		release := sync.OnceFunc(func() { close(other.gate) })
		t.Cleanup(release)
		waitsForPool := func(act func()) {
			t.Helper()
			before := p.Stats().Full
			act()
			waitFor(t, "it finds room", func() bool { return p.Stats().Full > before })
		}
		var fresh *testkit.Conn
		waitsForPool(reset.Reset)
		waitsForPool(func() { fresh = dial(t, s.addr) })
		waitsForPool(func() { waits.Send("for room\n") })
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		err := s.Shutdown(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "not returned") {
			t.Errorf("Shutdown: %v; want connections that were cut off, and no handler that has not returned", err)
		}
		s.waitResult(t)
		expectClosedWithoutOutput(t, idle, waits, fresh)
		g.expectClosed(t, 4, ErrServerClosed, syscall.ECONNRESET)
		release()
		a.Expect("block\n")
		a.ExchangeLine("the other server goes on", "the other server goes on")
	})
}

// The goroutine model does not use the pool.
func TestPoolOfGoroutines(t *testing.T) {
	p := newPool(t, singleWorker)
	s := startServer(t, &Server{Model: Goroutine, Workers: p})
	dial(t, s.addr).ExchangeLine("hello", "hello")
	if st := p.Stats(); st.Accepted != 0 {
		t.Errorf("the pool has run %d jobs of the goroutine model", st.Accepted)
	}
}
