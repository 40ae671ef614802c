package enginetest

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

var paceCases = []testCase{
	{"Pace touches many in one call", testSchedulerNudges},
	{"Pace without traffic", testSchedulerWithoutConns},
	{"Pace that has nothing planned", testSchedulerIdle},
}

func withScheduler(f engine.Scheduler) with { return func(cfg *engine.Config) { cfg.Scheduler = f } }

// testSchedulerNudges nudges more connections per call than a loop handles at once.
func testSchedulerNudges(b *testEnv) {
	const n = 150
	var mu sync.Mutex
	var refs []engine.Ref // not nudged yet
	s := b.startServer(&Script{Nudged: func(c *engine.Conn) { c.WriteString("due\n") }},
		withScheduler(func(_ int, now time.Duration, touch func(engine.Ref) bool) time.Duration {
			mu.Lock()
			defer mu.Unlock()
			refs = slices.DeleteFunc(refs, touch) // those of another loop by mail
			return now + time.Millisecond
		}))
	clients := s.dialMany(n)
	opened := s.wantOpened(n)
	mu.Lock()
	refs = opened
	mu.Unlock()
	for _, c := range clients {
		c.Expect("due\n")
		c.CloseWrite()
	}
	for _, c := range clients {
		c.ExpectEOF("")
	}
	s.awaitClosed(n)
}

// calls counts the calls of a Scheduler by loop, with -1 first.
type calls []atomic.Int64

func (c calls) minCalls(loops int) int64 {
	if loops == 0 {
		return c[0].Load()
	}
	least := c[1].Load()
	for i := range loops {
		least = min(least, c[i+1].Load())
	}
	return least
}

// testSchedulerWithoutConns checks that the Scheduler's times end the waits of idle loops.
func testSchedulerWithoutConns(b *testEnv) {
	count := make(calls, b.loops+1)
	s := b.startServer(&Script{}, withScheduler(func(loop int, now time.Duration, _ func(engine.Ref) bool) time.Duration {
		count[loop+1].Add(1)
		return now + 300*time.Microsecond
	}))
	testkit.WaitFor(b, "a wait does not end when Pace wants to be called", func() bool { return count.minCalls(s.Loops()) >= 20 })
}

// testSchedulerIdle checks that a Scheduler without plans does not wake loops.
func testSchedulerIdle(b *testEnv) {
	count := make(calls, b.loops+1)
	s := b.startServer(&Script{}, withScheduler(func(loop int, _ time.Duration, _ func(engine.Ref) bool) time.Duration {
		count[loop+1].Add(1)
		return -1
	}))
	testkit.WaitFor(b, "Pace is never called", func() bool { return count.minCalls(s.Loops()) > 0 })
	begun := time.Now()
	time.Sleep(5 * engine.MaxSchedulerDelay)
	for i := range count {
		n := count[i].Load()
		if most := 20 + int64(time.Since(begun)/engine.MaxSchedulerDelay); n > most {
			b.Errorf("Pace was called %d times for loop %d within %v, want %d at most", n, i-1, time.Since(begun), most)
		}
	}
}
