package tcp

import (
	"errors"
	"math"
	"net"
	"runtime"
	"runtime/metrics"
	"sync"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/pool"
)

// criticalHandler is a sheddingHandler whose connections become critical by a line "critical".
type criticalHandler struct{ sheddingHandler }

func (h criticalHandler) Message(c *Conn, msg []byte) {
	if string(msg) == "critical" {
		c.SetCritical(true)
	}
	h.sheddingHandler.Message(c, msg)
}

// TestOverloadShedsQueuedInput has a pool that sheds nothing itself.
func TestOverloadShedsQueuedInput(t *testing.T) {
	forEachLoopModel(t, func(t *testing.T, model string) {
		g := newGatedHandler()
		p := newPool(t, pool.Config{Max: 1, Queue: 100, FixedLimit: true, KeepQueued: true, FIFO: true})
		s := startServer(t, &Server{Model: model, Loops: 1, Workers: p, Handler: Lines(criticalHandler{sheddingHandler{g}})})
		open := sync.OnceFunc(func() { close(g.gate) })
		defer open()
		conns := dialManyUntilServed(t, s.addr, 40)
		vip := dialUntilServed(t, s.addr)
		vip.ExchangeLine("critical", "critical")
		a := g.blockWorker(t, s.addr)
		queued := 3
		waitFor(t, "it is not noticed that requests wait", func() bool {
			if queued < len(conns) {
				conns[queued].Send("x\n")
				queued++
			}
			return s.overload.QueueDelay() > 20*time.Millisecond
		})
		conns[0].Send("0\n")
		waitFor(t, "nothing is shed though requests wait for a second", func() bool { return s.Stats().Overload.ShedRequests == 1 })
		conns[1].ExchangeLine("1", "busy 1") // at once
		before := p.Stats().Queued
		vip.Send("vip\n")
		waitFor(t, "the critical one is not queued", func() bool { return p.Stats().Queued == before+1 })
		open()
		a.Expect("block\n")
		conns[0].Expect("busy 0\n") // it has waited for too long
		vip.Expect("vip\n")
		shed := 2
		for _, c := range conns[3:queued] {
			if c.ReadLine() != "x" { // those before the first that was measured are served
				shed++
			}
		}
		expectEqual(t, "counted as shed", s.Stats().Overload.ShedQueueDelay, int64(shed))
		waitFor(t, "it does not recover", func() bool {
			conns[0].Send("again\n")
			return conns[0].ReadLine() == "again"
		})
		waitFor(t, "the action does not end", func() bool { return !s.Stats().Overload.IsActive() })
	})
}

func shouldShedHandler(c *Conn, msg []byte) {
	if string(msg) == "critical" {
		c.SetCritical(true)
	}
	if c.ShouldShed() {
		c.WriteString("busy\n")
		return
	}
	echoLine(c, msg)
}

// TestOverloadOfMemory checks what the manager does when the live heap exceeds the memory limit.
func TestOverloadOfMemory(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, _ int) {
		fill := testkit.LimitMemory(t, 64<<20)
		refused := make(chan error, 10)
		s := startServer(t, &Server{Model: model, Handler: Lines(MessageFunc(shouldShedHandler)), Limits: Limits{IdleTimeout: 10 * time.Minute},
			Refuse: func(_ net.Addr, why error) []byte { refused <- why; return []byte("refused\n") }})
		c, vip := dial(t, s.addr), dial(t, s.addr)
		c.ExchangeLine("a", "a")
		vip.ExchangeLine("critical", "critical")
		fill()
		waitFor(t, "the actions do not begin", func() bool { return s.Stats().Overload.ShedRequests == 1 })
		c.ExchangeLine("b", "busy")
		vip.ExchangeLine("b", "b")
		if model == Goroutine {
			dial(t, s.addr) // the acceptor was already waiting
		}
		late := dial(t, s.addr) // it waits in the kernel's queue
		if st := s.Stats().Overload; st.ShedMemory != 1 || st.PauseAccepts != 1 || st.EndKeepAlive != 1 || st.ShortenIdle != 1 || st.PauseLargest != 1 || st.CloseSlowest != 1 {
			t.Errorf("the state is %+v", st)
		}
		if testing.Short() && model != Epoll {
			return
		}
		late.Expect("refused\n") // after 5 s
		if why := testkit.Receive(t, refused, "Refuse is not called"); !errors.Is(why, ErrOverloaded) {
			t.Errorf("refused because of %v; expected ErrOverloaded", why)
		}
		expectEqual(t, "counted as refused because of overload", s.Stats().Refused.Overload, 1)
	})
}

func TestOverloadManager(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	target := new(Server).initOverloadManagerOrNilLocked().MinTarget
	expectEqual(t, "the least target of the queue delay", target, singleProcessorMinTarget)
	if (&Server{Overload: Overload{Off: true}}).initOverloadManagerOrNilLocked() != nil {
		t.Error("a manager was made although Overload.Off is set")
	}
}

// TestOverloadCollectsGarbageAside has a collection that takes long, as without a free CPU: samples continue, and no
// other collection starts. Pauses between collections are shorter near the limit.
func TestOverloadCollectsGarbageAside(t *testing.T) {
	started, end := make(chan struct{}, 2), make(chan struct{})
	r := &overloadSampler{groupMemory: 0.96, heapLimit: math.MinInt64, collect: func() { started <- struct{}{}; <-end }}
	for range 4 {
		r.heap = append(r.heap, metrics.Sample{Name: "/gc/heap/live:bytes"})
	}
	metrics.Read(r.heap)
	for range 2 {
		r.collectGarbageIfMemoryShort(engine.MonotonicNow(), 0.96)
	}
	testkit.Receive(t, started, "no collection has started")
	close(end)
	testkit.WaitFor(t, "the collection does not end", func() bool { return !r.collecting.Load() })
	if len(started) > 0 {
		t.Error("a collection has started during another one")
	}
	r.collectedAt, r.collectionTime = 100*time.Second, time.Second
	for _, test := range []struct {
		at     time.Duration
		memory float64
		want   bool
	}{{100, 0.96, false}, {101, 0.96, true}, {108, 0.8, false}, {109, 0.8, true}, {109, 0.7, false}} {
		if got := r.mayCollectGarbage(test.at*time.Second, test.memory); got != test.want {
			t.Errorf("%d s after a collection of 1 s, with %v of the memory in use: %v; want %v", test.at-100, test.memory, got, test.want)
		}
	}
}
