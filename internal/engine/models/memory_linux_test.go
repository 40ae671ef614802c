package models_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/enginetest"
	"github.com/myriad-go/myriad/internal/engine/models"
)

// crowd is a handler that tells of its connections, holds their loop at the first
// input, and measures the heap when it is nudged.
type crowd struct {
	opened  chan engine.Ref
	blocked chan struct{}
	release chan struct{}
	heap    chan uint64
}

func (h *crowd) Opened(c *engine.Conn) { h.opened <- c.Ref() }
func (h *crowd) Received(_ *engine.Conn, in []byte) int {
	close(h.blocked)
	<-h.release
	return len(in)
}
func (h *crowd) Nudged(*engine.Conn)                        { h.heap <- heap() }
func (h *crowd) Ended(_ *engine.Conn, in []byte) (used int) { return len(in) }
func (h *crowd) Closed(*engine.Conn, error)                 {}

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
		conns    = 60        // fewer than get their mail before the first one is settled
		message  = 60 << 10  // a buffer of 64 KiB
		most     = 512 << 10 // of the burst's 4 MiB that may be left
	)
	for _, m := range models.All()[1:] {
		t.Run(m.Name, func(t *testing.T) {
			if err := m.Available(); err != nil {
				t.Skip(err)
			}
			h := &crowd{make(chan engine.Ref, conns), make(chan struct{}), make(chan struct{}), make(chan uint64, 1)}
			e, err := m.Start(engine.Config{
				Network: "tcp", Addr: "127.0.0.1:0", Handler: h, Limits: enginetest.Limits(), Loops: 1,
				Log: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			var peers []net.Conn
			var refs []engine.Ref
			for range conns {
				peer, err := net.Dial("tcp", e.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				peer.SetDeadline(time.Now().Add(patience))
				peers, refs = append(peers, peer), append(refs, <-h.opened)
			}
			before := heap()

			peers[0].Write([]byte("hold"))
			<-h.blocked
			for _, r := range refs {
				if err := r.Send(make([]byte, message)); err != nil {
					t.Fatal(err)
				}
			}
			if err := refs[0].Nudge(); err != nil { // behind the last message, before any is sent
				t.Fatal(err)
			}
			close(h.release)
			if during := <-h.heap; during < before+2*conns*message {
				t.Errorf("%d bytes in mails and buffers during the burst; want %d of each at the least", int64(during-before), conns*message)
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
