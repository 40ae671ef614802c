package goroutine

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/internal/testkit"
)

// Output that the kernel does not accept at all has the write timeout once, not twice. A busy machine may
// notice late, but hardly three times in a row.
func TestWriteTimeoutOfBlockedOutput(t *testing.T) {
	const limit = time.Second
	took := make([]time.Duration, 0, 3)
	for len(took) < cap(took) {
		took = append(took, measureWriteTimeout(t, limit))
		if took[len(took)-1] < limit*17/10 {
			return
		}
	}
	t.Errorf("closed after %v, want %v and a little more", took, limit)
}

// measureWriteTimeout returns how long such output waits until the connection is closed.
func measureWriteTimeout(t *testing.T, limit time.Duration) (took time.Duration) {
	t.Helper()
	h := newHandler()
	g := startTestEngine(t, h, func(cfg *engine.Config) { cfg.Limits.WriteTimeout = limit })
	dialEngine(t, g)
	ref := testkit.Receive(t, h.opened, "Opened")
	g.mu.Lock()
	c := g.conns.allConns()[0]
	g.mu.Unlock()
	fillSendBuffer(t, c)
	start := time.Now()
	if err := ref.Send(make([]byte, 1000)); err != nil {
		t.Fatalf("Send: %v", err)
	}
	if why := testkit.Receive(t, h.closed, "Closed"); !errors.Is(why, engine.ErrWriteTimeout) {
		t.Errorf("closed for %v, want %v", why, engine.ErrWriteTimeout)
	}
	if took = time.Since(start); took < limit {
		t.Errorf("closed after %v, want %v at least", took, limit)
	}
	if n := g.Counters()[engine.BytesOut]; n != 0 {
		t.Errorf("the kernel has taken %d bytes: the test is at fault", n)
	}
	return took
}

// fillSendBuffer writes past the connection until the kernel accepts no more for a while.
func fillSendBuffer(t *testing.T, c *conn) {
	t.Helper()
	piece := make([]byte, 1000)
	for last := time.Now(); time.Since(last) < 300*time.Millisecond; {
		err := c.io.raw.Control(func(fd uintptr) {
			switch _, errno := sock.Send(int32(fd), piece); errno {
			case 0:
				last = time.Now()
			case syscall.EAGAIN:
				time.Sleep(time.Millisecond)
			default:
				t.Fatalf("filling the kernel's buffer: %v", errno)
			}
		})
		testkit.RequireNoError(t, err)
	}
}
