package loop

import (
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

// waitRecorder is an idleDriver that reports the limit of each wait.
type waitRecorder struct {
	idleDriver
	sleeps chan time.Duration
}

func (s *waitRecorder) WaitForEvents(limit time.Duration) {
	s.sleeps <- limit
	s.idleDriver.WaitForEvents(limit)
	s.loop.Eventfd().Clear()
}

// A loop that sleeps after a burst wakes to free the buffers, and then sleeps without a limit.
func TestTrimAfterBurst(t *testing.T) {
	s := &waitRecorder{sleeps: make(chan time.Duration, 100)}
	startLoop(t, 0, func(l *Loop) Driver {
		s.loop = l
		return s
	})
	awaitSleep := func() time.Duration { return testkit.Receive(t, s.sleeps, "a wait of the loop") }
	if limit := awaitSleep(); limit >= 0 {
		t.Errorf("a loop without buffers waits for %v, want no limit", limit)
	}
	spare := make(chan bool, 1)
	s.loop.enqueueCallAndWake(func() {
		taken := make([]*engine.Buffer, 1000)
		for i := range taken {
			taken[i] = s.loop.buffers.GetOrNew(0)
		}
		for _, b := range taken {
			s.loop.buffers.Put(b)
		}
		spare <- s.loop.buffers.NeedsTrim()
	})
	if !<-spare {
		t.Error("no spare buffers after the burst")
	}
	for limit := awaitSleep(); limit >= 0; limit = awaitSleep() {
	}
	s.loop.enqueueCallAndWake(func() { spare <- s.loop.buffers.NeedsTrim() })
	if <-spare {
		t.Error("the loop waits without a limit although it has spare buffers")
	}
}
