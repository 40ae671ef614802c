package publish

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// pair makes two gates with a link between them: of an old process, and of a new one, which holds.
func pair(t *testing.T, max int) (old, next *Gate, from, to *sink, out, in *Link) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	var links [2]*Link
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "link")
		if links[i], err = NewLink(f, max, i == 1); err != nil {
			t.Fatal(err)
		}
		f.Close()
		t.Cleanup(links[i].Close)
	}
	old, from = newGate(10, 1<<20)
	next, to = newGate(10, 1<<20)
	_ = next.Hold(context.Background())
	return old, next, from, to, links[0], links[1]
}

// TestLink has each message run once in both processes: what the old one has held, what the new one
// has, and what either publishes from then on.
func TestLink(t *testing.T) {
	old, next, from, to, out, in := pair(t, 1<<20)
	_ = old.Hold(context.Background())
	publishes(t, old, "old 1", Held)
	publishes(t, next, "new 1", Held)
	publishes(t, old, "old 2", Held)
	var over sync.WaitGroup
	defer over.Wait()
	over.Go(func() {
		_ = out.Receive(Receiver{Message: func(m Broadcast) { old.Forwarded(m, out) }, Released: func() {}})
	})
	counted := make(chan string, 1)
	over.Go(func() {
		ahead := true
		err := in.Receive(Receiver{
			Message: func(m Broadcast) {
				if ahead {
					next.RunNow(m)
				} else {
					next.Forwarded(m, in)
				}
			},
			Released: func() {
				ahead = false
				next.Release(context.Background(), in)
			},
			Counters: func(p []byte) { counted <- string(p) },
		})
		if err != nil {
			t.Error(err)
		}
		in.Close()
	})
	old.Release(context.Background(), out)
	wants(t, to, "old 1", "old 2", "new 1")
	wants(t, from, "old 1", "old 2", "new 1")
	publishes(t, old, "old 3", 1)
	wants(t, to, "old 1", "old 2", "new 1", "old 3")
	publishes(t, next, "new 2", 1)
	wants(t, from, "old 1", "old 2", "new 1", "old 3", "new 2")
	_ = next.Hold(context.Background()) // which is upgraded in its turn
	publishes(t, old, "old 4", 1)
	testkit.WaitFor(t, "what is forwarded is not held", func() bool {
		next.mu.Lock()
		defer next.mu.Unlock()
		return len(next.held) == 1
	})
	next.Release(context.Background(), nil)
	wants(t, to, "old 1", "old 2", "new 1", "old 3", "new 2", "old 4")
	wants(t, from, "old 1", "old 2", "new 1", "old 3", "new 2", "old 4") // once
	out.SendCounters([]byte("counts"))
	out.Close()
	if got := testkit.Receive(t, counted, "counts"); got != "counts" {
		t.Errorf("counts are %q", got)
	}
}

// TestLinkFull has who publishes in the old process refused where the new one takes nothing, and
// the link end where it is the old one that takes nothing.
func TestLinkFull(t *testing.T) {
	old, next, from, _, out, in := pair(t, 1<<20)
	next.Release(context.Background(), in)
	_ = old.Hold(context.Background())
	old.Release(context.Background(), out)
	big := Broadcast{Message: make([]byte, 1<<19)}
	if err := out.conn.(*net.UnixConn).SetWriteBuffer(1 << 16); err != nil {
		t.Fatal(err)
	}
	const most = 2 // one that is being written, and one that waits for that
	var err error
	testkit.WaitFor(t, "there is no room", func() bool {
		_, err = old.Broadcast(big)
		return err != nil && len(from.all()) == most || len(from.all()) > most
	})
	if !errors.Is(err, errFull) {
		t.Fatalf("the new process takes nothing: %v; want that there is no room", err)
	}
	n := len(from.all())
	if _, err := old.Broadcast(big); !errors.Is(err, errFull) || len(from.all()) != n {
		t.Errorf("refused: %v, and run here: %d times", err, len(from.all())-n)
	}
	for i := range 100 {
		if _, err := next.Broadcast(big); err != nil {
			t.Fatalf("message %d of the new process, which may go on without the old one: %v", i, err)
		}
	}
	testkit.WaitFor(t, "the link does not end", func() bool {
		in.mu.Lock()
		defer in.mu.Unlock()
		return in.closed
	})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_ = old.Hold(ctx)
	publishes(t, old, "more", Held)
	old.Release(ctx, nil) // out has ended with the other side, or waits for room until it does
	publishes(t, old, "last", 1)
}

// TestFrames has a link end at what is no frame.
func TestFrames(t *testing.T) {
	for _, wrong := range [][]byte{{99}, {frameMessage, 1, 0xff, 0xff, 0xff, 0xff, 0x0f}, {frameAll, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f}, {frameAll, 3, 'a'}} {
		_, _, _, _, out, in := pair(t, 1<<20)
		if _, err := out.conn.Write(wrong); err != nil {
			t.Fatal(err)
		}
		out.Close()
		if err := in.Receive(Receiver{Message: func(m Broadcast) { t.Errorf("%v: %v", wrong, m) }}); err == nil {
			t.Errorf("%v is taken", wrong)
		}
	}
}
