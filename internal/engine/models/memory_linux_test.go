package models_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/enginetest"
	"github.com/myriad-go/myriad/internal/engine/models"
)

// crowd is a handler that tells of its connections, and has each write a message when
// it is touched. At the last of them it measures the heap.
type crowd struct {
	opened  chan engine.Ref
	refs    []engine.Ref
	burst   atomic.Bool // all refs are to be touched
	message int
	written int
	heap    chan uint64
}

func (h *crowd) Opened(c *engine.Conn)                      { h.opened <- c.Ref() }
func (h *crowd) Received(_ *engine.Conn, in []byte) int     { return len(in) }
func (h *crowd) Ended(_ *engine.Conn, in []byte) (used int) { return len(in) }
func (h *crowd) Closed(*engine.Conn, error)                 {}

func (h *crowd) Nudged(c *engine.Conn) {
	part := make([]byte, 4<<10) // which is not sent at once
	for range h.message / len(part) {
		c.Write(part)
	}
	if h.written++; h.written == len(h.refs) {
		h.heap <- heap()
	}
}

func (h *crowd) pace(_ int, now time.Duration, touch func(engine.Ref) bool) time.Duration {
	if h.burst.Swap(false) {
		for _, r := range h.refs {
			touch(r)
		}
	}
	return now + 10*time.Millisecond
}

// heap is what is in use of it.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // what was in a sync.Pool
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// The memory for the output of a burst is not a loop's for good: some seconds after
// it, when nothing is sent any more, the heap is as large as before.
func TestLoopMemoryAfterBurst(t *testing.T) {
	const (
		patience = time.Minute
		conns    = 60        // fewer than are touched before the first one is settled
		message  = 60 << 10  // a buffer of 64 KiB
		most     = 512 << 10 // of the burst's 4 MiB that may be left
	)
	for _, m := range models.All()[1:] {
		t.Run(m.Name, func(t *testing.T) {
			if err := m.Available(); err != nil {
				t.Skip(err)
			}
			h := &crowd{opened: make(chan engine.Ref, conns), message: message, heap: make(chan uint64, 1)}
			e, err := m.Start(engine.Config{
				Network: "tcp", Addr: "127.0.0.1:0", Handler: h, Limits: enginetest.Limits(), Loops: 1,
				Pace: h.pace, Log: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			var peers []net.Conn
			for range conns {
				peer, err := net.Dial("tcp", e.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				peer.SetDeadline(time.Now().Add(patience))
				peers, h.refs = append(peers, peer), append(h.refs, <-h.opened)
			}
			before := heap()

			h.burst.Store(true)
			if during := <-h.heap; during < before+conns*message {
				t.Errorf("%d bytes in buffers during the burst; want %d at the least", int64(during-before), conns*message)
			}
			var readers sync.WaitGroup
			for i, peer := range peers {
				readers.Go(func() {
					if _, err := io.CopyN(io.Discard, peer, message); err != nil {
						t.Errorf("peer %d: %v", i, err)
					}
				})
			}
			readers.Wait()

			end := time.Now().Add(patience)
			after := heap()
			for ; after > before+most && time.Now().Before(end); after = heap() {
				time.Sleep(50 * time.Millisecond)
			}
			if after > before+most {
				t.Errorf("%d bytes more in use than before the burst, %v after it; want %d at most", after-before, patience, most)
			}
			for _, peer := range peers {
				peer.Close()
			}
			if err := e.Stop(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
}
