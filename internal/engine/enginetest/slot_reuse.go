package enginetest

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

// ownerBlocker blocks the owner of a connection in its heartbeat, on a loop even where handlers run
// on workers.
type ownerBlocker struct {
	ref     atomic.Pointer[engine.Ref]
	entered chan struct{}
	release chan struct{}
	once    sync.Once
}

func newHolder() *ownerBlocker {
	return &ownerBlocker{entered: make(chan struct{}), release: make(chan struct{})}
}

func (h *ownerBlocker) setHeartbeat(cfg *engine.Config) {
	cfg.Heartbeat = engine.Heartbeat{Every: 100 * time.Millisecond, MaxMissed: 255, Send: func(c *engine.Conn) {
		if ref := h.ref.Load(); ref != nil && *ref == c.Ref() {
			h.once.Do(func() {
				close(h.entered)
				<-h.release
			})
		}
	}}
}

func (h *ownerBlocker) blockOwner(b *testEnv, r engine.Ref) {
	h.ref.Store(&r)
	testkit.Receive(b, h.entered, "a heartbeat")
}

// dialUntilSlotReused dials until a connection has the same owner as r and, if slot is not nil, that slot. It returns
// all clients and the Ref of the last one.
func (s *server) dialUntilSlotReused(b *testEnv, r engine.Ref, opened int, slot *uint32) (clients []*client, ref engine.Ref) {
	b.Helper()
	owner, _, _ := r.Location()
	for len(clients) < 200 {
		clients = append(clients, s.dial())
		ref = s.wantOpened(opened + len(clients))[opened+len(clients)-1]
		if o, n, _ := ref.Location(); o == owner && (slot == nil || n == *slot) {
			return clients, ref
		}
	}
	b.Fatalf("no connection came to loop %d and the slot", owner)
	return nil, ref
}

// testRequestsAtReset posts to a connection that was reset before its owner notices. The
// reservation must not affect the next connection in the slot, which closes in order.
func testRequestsAtReset(b *testEnv) {
	h := newHolder()
	s := b.startServer(newEchoScript(), h.setHeartbeat)
	first := s.dial()
	held := s.wantOpened(1)[0]
	clients, victim := s.dialUntilSlotReused(b, held, 1, nil)
	h.blockOwner(b, held)
	n := len(clients)
	clients[n-1].Reset()
	for range 3 {
		err := victim.Send([]byte("nobody will read this"))
		if s.Loops() == 0 && errors.Is(err, engine.ErrClosed) {
			err = nil // its goroutine is not blocked
		}
		b.checkNoError(err)
	}
	close(h.release)
	s.wantClosed(syscall.ECONNRESET)
	_, slot, _ := victim.Location()
	more, _ := s.dialUntilSlotReused(b, held, 1+n, &slot)
	last := more[len(more)-1]
	last.exchange("hello\n")
	last.CloseWrite()
	last.ExpectEOF("")
	s.wantClosed(syscall.ECONNRESET, io.EOF)
	for _, c := range append(append(clients[:n-1], more...), first) {
		c.Close()
	}
	s.awaitClosed(n + len(more) + 1)
}
