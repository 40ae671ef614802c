package publish

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

// sink is what a gate runs.
type sink struct {
	mu  sync.Mutex
	got []string
	// refuses is how many messages find no room.
	refuses int
	lost    []error
}

func (s *sink) run(m Broadcast) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.Group == "panics" {
		panic("oh")
	}
	if s.refuses > 0 {
		s.refuses--
		return 0, errFull
	}
	s.got = append(s.got, m.Group+string(m.Message))
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

func message(text string) Broadcast { return Broadcast{Group: text} }

func publishes(t *testing.T, g *Gate, text string, receivers int) {
	t.Helper()
	if n, err := g.Broadcast(message(text)); n != receivers || err != nil {
		t.Fatalf("%q: %d receivers, %v; want %d", text, n, err, receivers)
	}
}

func wants(t *testing.T, s *sink, want ...string) {
	t.Helper()
	testkit.WaitFor(t, fmt.Sprintf("not %d messages come", len(want)), func() bool { return len(s.all()) >= len(want) })
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
	if n, err := g.Broadcast(Broadcast{Message: p}); n != Held || err != nil {
		t.Fatalf("%d, %v; want Held", n, err)
	}
	p[0] = 'x'
	publishes(t, g, "c", Held)
	wants(t, s, "a")
	s.refuses = 3 // tried again until there is room
	run := g.Run
	g.Run = func(m Broadcast) (int, error) {
		n, err := run(m)
		if m.Group == "c" && err == nil {
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
		if n, err := g.Broadcast(message("y")); !errors.Is(err, errFull) {
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
	g.Run = func(m Broadcast) (int, error) {
		if m.Group == "slow" {
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
	publishes(t, g, "a", Held)
	g.Release(context.Background(), nil)
	publishes(t, g, "b", 1)
	over.Go(func() {
		if err := g.Hold(context.Background()); err != nil {
			t.Error(err)
		}
	})
	testkit.WaitFor(t, "nothing is held", func() bool { return g.state.Load() < 0 })
	publishes(t, g, "c", Held)
	close(leave)
	over.Wait()
	wants(t, s, "a", "b", "slow")
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

// TestReleaseEnds has Release catch up with who publishes faster than messages are run: when its
// time is over, no more are held until those that were have been run.
func TestReleaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, s := newGate(1<<20, 1<<30)
		_ = g.Hold(context.Background())
		accepted, refused := 0, 0
		var want []string
		publish := func() {
			text := fmt.Sprint(accepted)
			if n, err := g.Broadcast(message(text)); err == nil {
				accepted++
				want = append(want, text)
			} else if n != Held || !errors.Is(err, errFull) {
				t.Fatalf("%d, %v", n, err)
			} else {
				refused++
			}
		}
		run := g.Run
		g.Run = func(m Broadcast) (int, error) {
			if g.state.Load() < 0 && accepted < 1000 { // two come while one is run
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
		g.Release(ctx, nil)
		if took := time.Since(start); took > 30*time.Second || accepted < 20 || refused == 0 {
			t.Errorf("it took %v for %d messages, and refused %d", took, accepted, refused)
		}
		wants(t, s, want...)
		if publish(); len(s.all()) != accepted {
			t.Error("messages are still held")
		}
		_ = g.Hold(context.Background())
		publishes(t, g, "y", Held)
		g.Release(context.Background(), nil)
	})
}

// BenchmarkPublish is what a gate costs that is open.
func BenchmarkBroadcast(b *testing.B) {
	g := &Gate{Run: func(Broadcast) (int, error) { return 1, nil }, Full: errFull}
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			_, _ = g.Broadcast(Broadcast{Group: "a"})
		}
	})
}
