package pool_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"

	"github.com/myriad-go/myriad/pool"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// startPool creates a pool that is closed at the end of the test. It assumes idle processors:
// jobs that sleep by a fake clock all wake at once, and the number of runnable goroutines then
// depends on the machine's load, not on the jobs.
func startPool(t testing.TB, cfg pool.Config) *pool.Pool {
	t.Helper()
	p, err := pool.NewWithRunnable(cfg, func() int { return 0 })
	return closeAtEnd(t, p, err)
}

func closeAtEnd(t testing.TB, p *pool.Pool, err error) *pool.Pool {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		if _, err := p.Close(ctx); err != nil {
			t.Errorf("Close at the end: %v", err)
		}
	})
	return p
}

func fixedConfig(workers, queue int) pool.Config {
	return pool.Config{Min: workers, Max: workers, Queue: queue, Target: time.Hour}
}

// plainConfig is fixedConfig, if plain without rules for overload.
func plainConfig(workers, queue int, plain bool) pool.Config {
	return pool.Config{Min: workers, Max: workers, Queue: queue, Target: time.Hour, FixedLimit: plain, KeepQueued: plain, FIFO: plain}
}

func mustSubmit(t testing.TB, p *pool.Pool, job pool.Func) {
	t.Helper()
	mustSubmitTask(t, p, pool.Task{Job: job})
}

func mustSubmitTask(t testing.TB, p *pool.Pool, task pool.Task) {
	t.Helper()
	if err := p.TrySubmitTask(task); err != nil {
		t.Fatal(err)
	}
}

// occupyWorkers keeps n workers busy until release is called or the test ends.
func occupyWorkers(t testing.TB, p *pool.Pool, n int) (release func()) {
	t.Helper()
	started, gate := make(chan struct{}, n), make(chan struct{})
	release = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(release)
	for range n {
		if err := p.Submit(context.Background(), func(context.Context) { started <- struct{}{}; <-gate }); err != nil {
			t.Fatalf("Submit of a job that holds a worker: %v", err)
		}
	}
	for range n {
		testkit.Receive(t, started, "a job that holds a worker")
	}
	return release
}

func closeAndCheck(t testing.TB, p *pool.Pool, ctx context.Context) (dropped []pool.Task) {
	t.Helper()
	dropped, err := p.Close(ctx)
	switch {
	case len(dropped) == 0 && err != nil:
		t.Errorf("Close dropped nothing, but: %v", err)
	case len(dropped) > 0 && !errors.Is(err, context.Cause(ctx)):
		t.Errorf("Close dropped %d jobs, and says %v; expected %v", len(dropped), err, context.Cause(ctx))
	}
	return dropped
}

func newEndedContext(why error) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(why)
	return ctx
}

var errWhy = errors.New("the reason of the test")

type recordedJob struct {
	t        testing.TB
	name     string
	do       func(ctx context.Context) // may be nil
	outcomes atomic.Int32
	ran      atomic.Bool
	why      atomic.Pointer[error]
}

func (n *recordedJob) recordOutcome(what string) {
	if n.outcomes.Add(1) != 1 {
		n.t.Errorf("job %q: %s, but it had an outcome already (ran: %v, dropped: %v)", n.name, what, n.ran.Load(), n.dropped())
	}
}

func (n *recordedJob) Run(ctx context.Context) {
	n.recordOutcome("it runs")
	n.ran.Store(true)
	if n.do != nil {
		n.do(ctx)
	}
}

func (n *recordedJob) Dropped(why error) {
	n.recordOutcome("it is dropped: " + why.Error())
	n.why.Store(&why)
}

func (n *recordedJob) dropped() error {
	if why := n.why.Load(); why != nil {
		return *why
	}
	return nil
}

func (n *recordedJob) expectRan() {
	n.t.Helper()
	if !n.ran.Load() {
		n.t.Errorf("job %q has not run (dropped: %v)", n.name, n.dropped())
	}
}

func (n *recordedJob) expectDropped(want ...error) {
	n.t.Helper()
	if n.ran.Load() {
		n.t.Errorf("job %q has run; expected it to be dropped: %v", n.name, want)
	}
	for _, w := range want {
		if !errors.Is(n.dropped(), w) {
			n.t.Errorf("job %q was dropped with %v; expected that to be %v", n.name, n.dropped(), w)
		}
	}
}

func (n *recordedJob) expectNoOutcome() {
	n.t.Helper()
	if n.outcomes.Load() != 0 {
		n.t.Errorf("job %q was not accepted, but it had an outcome (ran: %v, dropped: %v)", n.name, n.ran.Load(), n.dropped())
	}
}

func expectBalanced(t testing.TB, p *pool.Pool) pool.Stats {
	t.Helper()
	s := p.Stats()
	if ends := s.Finished + s.Expired + s.Shed + s.Dropped; s.Accepted != ends {
		t.Errorf("Accepted is %d, but %d have ended (finished %d, expired %d, shed %d, dropped %d)",
			s.Accepted, ends, s.Finished, s.Expired, s.Shed, s.Dropped)
	}
	if s.Workers != 0 || s.Idle != 0 || s.Queued != 0 || s.Running != 0 {
		t.Errorf("after Close: workers %d, idle %d, queued %d, running %d; expected none", s.Workers, s.Idle, s.Queued, s.Running)
	}
	return s
}

func setProcessors(t *testing.T, n int) {
	t.Helper()
	before := runtime.GOMAXPROCS(n)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

// oneShard is a length of the queue for which it has one shard, on any machine.
const oneShard = 64

// TestBlock checks that another job runs in place of one in Block, and that there are at most Max
// workers afterwards.
func TestBlock(t *testing.T) {
	for name, queue := range map[string]int{"queue": 16, "no queue": pool.NoQueue} {
		t.Run(name, func(t *testing.T) {
			p := startPool(t, pool.Config{Max: 1, Queue: queue, Target: time.Hour})
			const blocked = 5
			gate := make(chan struct{})
			var entered, left sync.WaitGroup
			for range blocked {
				entered.Add(1)
				left.Add(1)
				if err := p.Submit(context.Background(), func(context.Context) {
					defer left.Done()
					p.Block(func() { entered.Done(); <-gate })
				}); err != nil {
					t.Fatal(err)
				}
			}
			entered.Wait()
			if n := p.Stats().Running; n != blocked {
				t.Errorf("%d jobs run; expected %d", n, blocked)
			}
			ran := make(chan struct{})
			if err := p.Submit(context.Background(), func(context.Context) { close(ran) }); err != nil {
				t.Fatal(err)
			}
			testkit.Receive(t, ran, "a job beside those that are blocked")
			close(gate)
			left.Wait()
			testkit.WaitFor(t, "more workers are left than Max", func() bool { return p.Stats().Workers <= 1 })
		})
	}
}
