package broadcastlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

var errFull = errors.New("full")

type recorder struct {
	mu  sync.Mutex
	got []string
	// rejections is how many broadcasts find no space.
	rejections int
	dropped    []error
}

func (s *recorder) deliver(m Broadcast) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.Group == "panics" {
		panic("oh")
	}
	if s.rejections > 0 {
		s.rejections--
		return 0, errFull
	}
	s.got = append(s.got, m.Group+string(m.Message))
	return 1, nil
}

func (s *recorder) messages() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got)
}

func newTestLog(messages, bytes int) (*Log, *recorder) {
	s := new(recorder)
	failed := func(err error) { s.dropped = append(s.dropped, err) }
	return &Log{Deliver: s.deliver, ErrFull: errFull, OnDropped: failed, MaxMessages: messages, MaxBytes: bytes}, s
}

func newBroadcast(text string) Broadcast { return Broadcast{Group: text} }

func mustBroadcast(t *testing.T, g *Log, text string, receivers int) {
	t.Helper()
	if n, err := g.BroadcastOrQueue(newBroadcast(text)); n != receivers || err != nil {
		t.Fatalf("%q: %d receivers, %v; want %d", text, n, err, receivers)
	}
}

func waitForMessages(t *testing.T, s *recorder, want ...string) {
	t.Helper()
	testkit.WaitFor(t, fmt.Sprintf("not %d messages come", len(want)), func() bool { return len(s.messages()) >= len(want) })
	if got := s.messages(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestPause checks that broadcasts are queued, copied, and delivered in order, also those made meanwhile.
func TestPause(t *testing.T) {
	g, s := newTestLog(10, 1000)
	mustBroadcast(t, g, "a", 1)
	testkit.RequireNoError(t, g.Pause(context.Background()))
	p := []byte("b")
	if n, err := g.BroadcastOrQueue(Broadcast{Message: p}); n != Queued || err != nil {
		t.Fatalf("%d, %v; want Held", n, err)
	}
	p[0] = 'x'
	mustBroadcast(t, g, "c", Queued)
	waitForMessages(t, s, "a")
	s.rejections = 3 // retried until there is space
	run := g.Deliver
	g.Deliver = func(m Broadcast) (int, error) {
		n, err := run(m)
		if m.Group == "c" && err == nil {
			mustBroadcast(t, g, "d", Queued) // made during delivery
		}
		return n, err
	}
	g.DeliverQueueAndResume(context.Background(), nil)
	mustBroadcast(t, g, "e", 1)
	waitForMessages(t, s, "a", "b", "c", "d", "e")
}

// TestPauseLimits checks the limits of a pause, which include broadcasts that have been delivered.
func TestPauseLimits(t *testing.T) {
	for _, c := range []struct{ messages, bytes, fit int }{{3, 1 << 20, 3}, {100, 3 * newBroadcast("x").queueSize(), 3}, {100, 1, 1}} {
		g, s := newTestLog(c.messages, c.bytes)
		_ = g.Pause(context.Background())
		for range c.fit {
			mustBroadcast(t, g, "x", Queued)
		}
		if n, err := g.BroadcastOrQueue(newBroadcast("y")); !errors.Is(err, errFull) {
			t.Errorf("%+v: one more: %d, %v; want that there is no room", c, n, err)
		}
		g.DeliverQueueAndResume(context.Background(), nil)
		waitForMessages(t, s, slices.Repeat([]string{"x"}, c.fit)...)
		_ = g.Pause(context.Background())
		mustBroadcast(t, g, "z", Queued)
		g.DeliverQueueAndResume(context.Background(), nil)
	}
}

// TestPauseWaitsForBroadcasts checks that Pause waits for active broadcasts until ctx ends, and that Resume drops
// broadcasts without space.
func TestPauseWaitsForBroadcasts(t *testing.T) {
	g, s := newTestLog(10, 1000)
	entered, leave := make(chan bool), make(chan bool)
	run := g.Deliver
	g.Deliver = func(m Broadcast) (int, error) {
		if m.Group == "slow" {
			close(entered)
			<-leave
		}
		return run(m)
	}
	var over sync.WaitGroup
	over.Go(func() { mustBroadcast(t, g, "slow", 1) })
	<-entered
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := g.Pause(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("Hold: %v; want that its time is over", err)
	}
	mustBroadcast(t, g, "a", Queued)
	g.DeliverQueueAndResume(context.Background(), nil)
	mustBroadcast(t, g, "b", 1)
	over.Go(func() {
		testkit.ExpectNoError(t, g.Pause(context.Background()))
	})
	testkit.WaitFor(t, "nothing is held", func() bool { return g.active.Load() < 0 })
	mustBroadcast(t, g, "c", Queued)
	close(leave)
	over.Wait()
	waitForMessages(t, s, "a", "b", "slow")
	s.rejections = 1 << 30
	mustBroadcast(t, g, "panics", Queued)
	g.DeliverQueueAndResume(ctx, nil)
	if len(s.dropped) != 2 || !errors.Is(s.dropped[0], errFull) || !strings.Contains(s.dropped[1].Error(), "panic: oh") {
		t.Errorf("lost are %v; want one for which there was no room, and one that panics", s.dropped)
	}
}

// TestResumePace checks that queued broadcasts are delivered eight times as fast as they were made.
func TestResumePace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, s := newTestLog(100, 1<<20)
		_ = g.Pause(context.Background())
		var want []string
		for i := range 9 {
			mustBroadcast(t, g, fmt.Sprint(i), Queued)
			want = append(want, fmt.Sprint(i))
			time.Sleep(time.Second)
		}
		start := time.Now()
		g.DeliverQueueAndResume(context.Background(), nil)
		if took := time.Since(start); took != time.Second {
			t.Errorf("what was published in 8 s is run in %v; want 1 s", took)
		}
		waitForMessages(t, s, want...)
	})
}

// TestResumeTimeout checks that Resume catches up with fast callers: after its time has run out, the log
// rejects new broadcasts until the queue is empty.
func TestResumeTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, s := newTestLog(1<<20, 1<<30)
		_ = g.Pause(context.Background())
		accepted, refused := 0, 0
		var want []string
		publish := func() {
			text := fmt.Sprint(accepted)
			if n, err := g.BroadcastOrQueue(newBroadcast(text)); err == nil {
				accepted++
				want = append(want, text)
			} else if n != Queued || !errors.Is(err, errFull) {
				t.Fatalf("%d, %v", n, err)
			} else {
				refused++
			}
		}
		run := g.Deliver
		g.Deliver = func(m Broadcast) (int, error) {
			if g.active.Load() < 0 && accepted < 1000 { // two are made while one is delivered
				publish()
				publish()
				time.Sleep(time.Second)
			}
			return run(m)
		}
		publish()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		start := time.Now()
		g.DeliverQueueAndResume(ctx, nil)
		if took := time.Since(start); took > 30*time.Second || accepted < 20 || refused == 0 {
			t.Errorf("it took %v for %d messages, and refused %d", took, accepted, refused)
		}
		waitForMessages(t, s, want...)
		if publish(); len(s.messages()) != accepted {
			t.Error("messages are still held")
		}
		_ = g.Pause(context.Background())
		mustBroadcast(t, g, "y", Queued)
		g.DeliverQueueAndResume(context.Background(), nil)
	})
}
