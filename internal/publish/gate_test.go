package publish

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/await"
)

var errFull = errors.New("full")

// sink is what a gate runs.
type sink struct {
	mu  sync.Mutex
	got []string
	// refuses is how many messages find no room.
	refuses int
	lost    []error
}

func (s *sink) run(m Message) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.Topic == "panics" {
		panic("oh")
	}
	if s.refuses > 0 {
		s.refuses--
		return 0, errFull
	}
	s.got = append(s.got, m.Topic+string(m.Bytes))
	return 1, nil
}

func (s *sink) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got)
}

func newGate(messages, bytes int) (*Gate, *sink) {
	s := new(sink)
	failed := func(err error) { s.lost = append(s.lost, err) }
	return &Gate{Run: s.run, Full: errFull, Failed: failed, MaxMessages: messages, MaxBytes: bytes}, s
}

func message(text string) Message { return Message{Topic: text} }

func publishes(t *testing.T, g *Gate, text string, receivers int) {
	t.Helper()
	if n, err := g.Publish(message(text)); n != receivers || err != nil {
		t.Fatalf("%q: %d receivers, %v; want %d", text, n, err, receivers)
	}
}

func wants(t *testing.T, s *sink, want ...string) {
	t.Helper()
	await.True(t, fmt.Sprintf("not %d messages come", len(want)), func() bool { return len(s.all()) >= len(want) })
	if got := s.all(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestHold has messages wait, copied, and run in their order, also those that come meanwhile.
func TestHold(t *testing.T) {
	g, s := newGate(10, 1000)
	publishes(t, g, "a", 1)
	if err := g.Hold(context.Background()); err != nil {
		t.Fatal(err)
	}
	p := []byte("b")
	if n, err := g.Publish(Message{Bytes: p}); n != Held || err != nil {
		t.Fatalf("%d, %v; want Held", n, err)
	}
	p[0] = 'x'
	publishes(t, g, "c", Held)
	wants(t, s, "a")
	s.refuses = 3 // tried again until there is room
	run := g.Run
	g.Run = func(m Message) (int, error) {
		n, err := run(m)
		if m.Topic == "c" && err == nil {
			publishes(t, g, "d", Held) // from within
		}
		return n, err
	}
	g.Release(context.Background(), nil)
	publishes(t, g, "e", 1)
	wants(t, s, "a", "b", "c", "d", "e")
}

// TestHoldBounds has a hold take so many messages and bytes, and no more although some have run.
func TestHoldBounds(t *testing.T) {
	for _, c := range []struct{ messages, bytes, fit int }{{3, 1 << 20, 3}, {100, 3 * message("x").size(), 3}, {100, 1, 1}} {
		g, s := newGate(c.messages, c.bytes)
		_ = g.Hold(context.Background())
		for range c.fit {
			publishes(t, g, "x", Held)
		}
		if n, err := g.Publish(message("y")); !errors.Is(err, errFull) {
			t.Errorf("%+v: one more: %d, %v; want that there is no room", c, n, err)
		}
		g.Release(context.Background(), nil)
		wants(t, s, slices.Repeat([]string{"x"}, c.fit)...)
		_ = g.Hold(context.Background())
		publishes(t, g, "z", Held)
		g.Release(context.Background(), nil)
	}
}

// TestHoldWaits has Hold wait for who publishes, as long as it may, and Release give up what finds
// no room.
func TestHoldWaits(t *testing.T) {
	g, s := newGate(10, 1000)
	entered, leave := make(chan bool), make(chan bool)
	run := g.Run
	g.Run = func(m Message) (int, error) {
		if m.Topic == "slow" {
			close(entered)
			<-leave
		}
		return run(m)
	}
	var over sync.WaitGroup
	over.Go(func() { publishes(t, g, "slow", 1) })
	<-entered
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := g.Hold(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("Hold: %v; want that its time is over", err)
	}
	publishes(t, g, "a", 1)
	over.Go(func() {
		if err := g.Hold(context.Background()); err != nil {
			t.Error(err)
		}
	})
	await.True(t, "nothing is held", func() bool { return g.state.Load() < 0 })
	publishes(t, g, "b", Held)
	close(leave)
	over.Wait()
	wants(t, s, "a", "slow")
	s.refuses = 1 << 30
	publishes(t, g, "panics", Held)
	g.Release(ctx, nil)
	if len(s.lost) != 2 || !errors.Is(s.lost[0], errFull) || !strings.Contains(s.lost[1].Error(), "panic: oh") {
		t.Errorf("lost are %v; want one for which there was no room, and one that panics", s.lost)
	}
}

// TestReleasePace has held messages run in an eighth of the time in which they were published.
func TestReleasePace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, s := newGate(100, 1<<20)
		_ = g.Hold(context.Background())
		var want []string
		for i := range 9 {
			publishes(t, g, fmt.Sprint(i), Held)
			want = append(want, fmt.Sprint(i))
			time.Sleep(time.Second)
		}
		start := time.Now()
		g.Release(context.Background(), nil)
		if took := time.Since(start); took != time.Second {
			t.Errorf("what was published in 8 s is run in %v; want 1 s", took)
		}
		wants(t, s, want...)
	})
}

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
		_ = out.Receive(Receiver{Message: func(m Message) { old.Forwarded(m, out) }, Released: func() {}})
	})
	counted := make(chan string, 1)
	over.Go(func() {
		ahead := true
		err := in.Receive(Receiver{
			Message: func(m Message) {
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
	await.True(t, "what is forwarded is not held", func() bool {
		next.mu.Lock()
		defer next.mu.Unlock()
		return len(next.held) == 1
	})
	next.Release(context.Background(), nil)
	wants(t, to, "old 1", "old 2", "new 1", "old 3", "new 2", "old 4")
	wants(t, from, "old 1", "old 2", "new 1", "old 3", "new 2", "old 4") // once
	out.SendCounters([]byte("counts"))
	out.Close()
	if got := await.Receive(t, counted, "counts"); got != "counts" {
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
	big := Message{Bytes: make([]byte, 1<<19)}
	var err error
	for i := 0; i < 100 && err == nil; i++ {
		_, err = old.Publish(big)
	}
	if !errors.Is(err, errFull) {
		t.Fatalf("the new process takes nothing: %v; want that there is no room", err)
	}
	n := len(from.all())
	if _, err := old.Publish(big); !errors.Is(err, errFull) || len(from.all()) != n {
		t.Errorf("refused: %v, and run here: %d times", err, len(from.all())-n)
	}
	for i := range 100 {
		if _, err := next.Publish(big); err != nil {
			t.Fatalf("message %d of the new process, which may go on without the old one: %v", i, err)
		}
	}
	await.True(t, "the link does not end", func() bool {
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
		if err := in.Receive(Receiver{Message: func(m Message) { t.Errorf("%v: %v", wrong, m) }}); err == nil {
			t.Errorf("%v is taken", wrong)
		}
	}
}
