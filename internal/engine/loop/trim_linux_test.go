package loop

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

// sleeper is a driver to whom nothing happens, which says for how long it is to wait.
type sleeper struct {
	rest
	sleeps chan time.Duration
}

func (s *sleeper) Wait(most time.Duration) {
	s.sleeps <- most
	s.rest.Wait(most)
	s.loop.Eventfd().Clear()
}

// A loop that sleeps after a burst wakes to drop the buffers, and then sleeps for ever.
func TestLoopForgetsABurst(t *testing.T) {
	s := &sleeper{sleeps: make(chan time.Duration, 100)}
	e, err := Start(engine.Config{Loops: 1, Log: slog.New(slog.DiscardHandler)}, func(l *Loop) Driver {
		s.loop = l
		return s
	})
	if err != nil {
		t.Fatal(err)
	}
	awaitSleep := func() time.Duration { return testkit.Receive(t, s.sleeps, "a wait of the loop") }
	if most := awaitSleep(); most >= 0 {
		t.Errorf("a loop that holds nothing waits for %v, want for ever", most)
	}
	spare := make(chan bool, 1)
	s.loop.addChore(func() {
		taken := make([]*engine.Buffer, 1000)
		for i := range taken {
			taken[i] = s.loop.buffers.Get(0)
		}
		for _, b := range taken {
			s.loop.buffers.Put(b)
		}
		spare <- s.loop.buffers.NeedsTrim()
	})
	if !<-spare {
		t.Error("a burst has left nothing that could be dropped")
	}
	for most := awaitSleep(); most >= 0; most = awaitSleep() {
	}
	s.loop.addChore(func() { spare <- s.loop.buffers.NeedsTrim() })
	if <-spare {
		t.Error("it sleeps for ever with more than it is to hold on to")
	}
	if err := e.Stop(context.Background()); err != nil {
		t.Error(err)
	}
}
