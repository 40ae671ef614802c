package broadcastlog

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

// newPeerPair returns two connected logs: of an old process, and of a new one, which is paused.
func newPeerPair(t *testing.T, max int) (old, next *Log, from, to *recorder, out, in *Peer) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	testkit.RequireNoError(t, err)
	var links [2]*Peer
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "link")
		if links[i], err = NewPeer(f, max, i == 1); err != nil {
			t.Fatal(err)
		}
		f.Close()
		t.Cleanup(links[i].FlushAndClose)
	}
	old, from = newTestLog(10, 1<<20)
	next, to = newTestLog(10, 1<<20)
	_ = next.Pause(context.Background())
	return old, next, from, to, links[0], links[1]
}

// TestPeer checks that each broadcast is delivered once in both processes: those queued in the old one,
// those queued in the new one, and later ones of either.
func TestPeer(t *testing.T) {
	old, next, from, to, out, in := newPeerPair(t, 1<<20)
	_ = old.Pause(context.Background())
	mustBroadcast(t, old, "old 1", Queued)
	mustBroadcast(t, next, "new 1", Queued)
	mustBroadcast(t, old, "old 2", Queued)
	var over sync.WaitGroup
	defer over.Wait()
	over.Go(func() {
		_ = out.ReceiveFrames(FrameHandler{OnBroadcast: func(m Broadcast) { old.DeliverAndForwardToOtherPeers(m, out) }, OnResumed: func() {}})
	})
	counted := make(chan string, 1)
	over.Go(func() {
		ahead := true
		err := in.ReceiveFrames(FrameHandler{
			OnBroadcast: func(m Broadcast) {
				if ahead {
					next.DeliverEvenIfPaused(m)
				} else {
					next.DeliverAndForwardToOtherPeers(m, in)
				}
			},
			OnResumed: func() {
				ahead = false
				next.DeliverQueueAndResume(context.Background(), in)
			},
			OnCounters: func(p []byte) { counted <- string(p) },
		})
		if err != nil {
			t.Error(err)
		}
		in.FlushAndClose()
	})
	old.DeliverQueueAndResume(context.Background(), out)
	waitForMessages(t, to, "old 1", "old 2", "new 1")
	waitForMessages(t, from, "old 1", "old 2", "new 1")
	mustBroadcast(t, old, "old 3", 1)
	waitForMessages(t, to, "old 1", "old 2", "new 1", "old 3")
	mustBroadcast(t, next, "new 2", 1)
	waitForMessages(t, from, "old 1", "old 2", "new 1", "old 3", "new 2")
	_ = next.Pause(context.Background()) // for its own upgrade
	mustBroadcast(t, old, "old 4", 1)
	testkit.WaitFor(t, "what is forwarded is not held", func() bool {
		next.mu.Lock()
		defer next.mu.Unlock()
		return len(next.queue) == 1
	})
	next.DeliverQueueAndResume(context.Background(), nil)
	waitForMessages(t, to, "old 1", "old 2", "new 1", "old 3", "new 2", "old 4")
	waitForMessages(t, from, "old 1", "old 2", "new 1", "old 3", "new 2", "old 4") // once
	out.EnqueueCounters([]byte("counts"))
	out.FlushAndClose()
	if got := testkit.Receive(t, counted, "counts"); got != "counts" {
		t.Errorf("counts are %q", got)
	}
}

// TestPeerFull checks that broadcasts of the old process fail if the new one reads nothing, and that the
// connection is closed if the old one reads nothing.
func TestPeerFull(t *testing.T) {
	old, next, from, _, out, in := newPeerPair(t, 1<<20)
	next.DeliverQueueAndResume(context.Background(), in)
	_ = old.Pause(context.Background())
	old.DeliverQueueAndResume(context.Background(), out)
	big := Broadcast{Message: make([]byte, 1<<19)}
	testkit.RequireNoError(t, out.conn.(*net.UnixConn).SetWriteBuffer(1<<16))
	const most = 2 // one being written and one pending
	var err error
	testkit.WaitFor(t, "there is no room", func() bool {
		_, err = old.BroadcastOrQueue(big)
		return err != nil && len(from.messages()) == most || len(from.messages()) > most
	})
	if !errors.Is(err, errFull) {
		t.Fatalf("the new process takes nothing: %v; want that there is no room", err)
	}
	n := len(from.messages())
	if _, err := old.BroadcastOrQueue(big); !errors.Is(err, errFull) || len(from.messages()) != n {
		t.Errorf("refused: %v, and run here: %d times", err, len(from.messages())-n)
	}
	for i := range 100 {
		if _, err := next.BroadcastOrQueue(big); err != nil {
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
	_ = old.Pause(ctx)
	mustBroadcast(t, old, "more", Queued)
	old.DeliverQueueAndResume(ctx, nil) // out is closed with the other side, or waits for space until then
	mustBroadcast(t, old, "last", 1)
}

func TestInvalidFrames(t *testing.T) {
	for _, wrong := range [][]byte{{99}, {frameMessage, 1, 0xff, 0xff, 0xff, 0xff, 0x0f}, {frameAll, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f}, {frameAll, 3, 'a'}} {
		_, _, _, _, out, in := newPeerPair(t, 1<<20)
		if _, err := out.conn.Write(wrong); err != nil {
			t.Fatal(err)
		}
		out.FlushAndClose()
		if err := in.ReceiveFrames(FrameHandler{OnBroadcast: func(m Broadcast) { t.Errorf("%v: %v", wrong, m) }}); err == nil {
			t.Errorf("%v is taken", wrong)
		}
	}
}
