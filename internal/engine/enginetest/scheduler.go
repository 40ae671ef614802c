package enginetest

import (
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

var paceCases = []testCase{
	{"Pace touches many in one call", testSchedulerNudges},
	{"Pace touches more often than there is room for mail", testSchedulerMailboxFull},
	{"Pace without traffic", testSchedulerWithoutConns},
	{"Pace that has nothing planned", testSchedulerIdle},
}

func withScheduler(f engine.Scheduler) with { return func(cfg *engine.Config) { cfg.Scheduler = f } }

// nudgePlan is a Scheduler that nudges each added Ref once, on its loop.
type nudgePlan struct {
	mu   sync.Mutex
	refs []engine.Ref
}

func (p *nudgePlan) addConns(refs ...engine.Ref) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refs = append(p.refs, refs...)
}

// takeConnsOfLoop removes and returns the connections of a loop.
func (p *nudgePlan) takeConnsOfLoop(loop int) (mine []engine.Ref) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var others []engine.Ref
	for _, r := range p.refs {
		if owner, _, _ := r.Location(); owner == loop || loop < 0 {
			mine = append(mine, r)
		} else {
			others = append(others, r)
		}
	}
	p.refs = others
	return mine
}

func (p *nudgePlan) schedule(loop int, now time.Duration, touch func(engine.Ref) bool) time.Duration {
	for _, r := range p.takeConnsOfLoop(loop) {
		if !touch(r) {
			p.addConns(r)
		}
	}
	return now + time.Millisecond
}

// testSchedulerNudges nudges more connections per call than a loop handles at once.
func testSchedulerNudges(b *testEnv) {
	const n = 150
	var p nudgePlan
	s := b.startServer(&Script{Nudged: func(c *engine.Conn) { c.WriteString("due\n") }}, withScheduler(p.schedule))
	clients := s.dialMany(n)
	p.addConns(s.wantOpened(n)...)
	for _, c := range clients {
		c.Expect("due\n")
		c.CloseWrite()
	}
	for _, c := range clients {
		c.ExpectEOF("")
	}
	s.awaitClosed(n)
}

// testSchedulerMailboxFull nudges a connection more often per call than its mailbox holds. Each
// accepted nudge must call Nudged; the others must return false.
func testSchedulerMailboxFull(b *testEnv) {
	const mail, touches = 4, 100
	var ref atomic.Pointer[engine.Ref]
	var nudges, taken atomic.Int64
	var once sync.Once
	called, release := make(chan struct{}), make(chan struct{})
	var held atomic.Bool // used by the scheduler's goroutine only
	s := b.startServer(&Script{
		Received: func(c *engine.Conn, in []byte) int {
			if held.Load() {
				<-release
			}
			return len(in)
		},
		Nudged: func(*engine.Conn) { nudges.Add(1) },
	}, limited(func(l *engine.Limits) { l.MaxMail = mail }), withScheduler(func(_ int, now time.Duration, touch func(engine.Ref) bool) time.Duration {
		if r := ref.Load(); r != nil {
			once.Do(func() {
				for range touches {
					if touch(*r) {
						taken.Add(1)
					}
				}
				close(called)
			})
		}
		return now + time.Millisecond
	}))
	c := s.dial()
	r := s.wantOpened(1)[0]
	if s.Loops() == 0 {
		held.Store(true)
		c.Send("x")
		s.wantBytesIn(1)
	}
	ref.Store(&r)
	testkit.Receive(b, called, "a call of Pace")
	if n := taken.Load(); held.Load() && n != 2*mail {
		b.Errorf("%d of %d touches of a connection that takes no mail were taken, want %d", n, touches, 2*mail)
	}
	close(release)
	testkit.WaitFor(b, "not every touch that was taken has come to Nudged", func() bool { return nudges.Load() >= taken.Load() })
	if nudges.Load() > taken.Load() {
		b.Errorf("Nudged was called %d times, but %d touches were taken", nudges.Load(), taken.Load())
	}
	c.Close()
	s.wantClosed(io.EOF)
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
