package pool_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/pool"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// inBubble runs test with a pool in a synctest bubble.
func inBubble(t *testing.T, cfg pool.Config, test func(t *testing.T, p *pool.Pool)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, startPool(t, cfg)) })
}

// startPool creates a pool that is closed at the end of the test. It assumes idle processors:
// jobs that sleep by a fake clock all wake at once, and the number of runnable goroutines then
// depends on the machine's load, not on the jobs.
func startPool(t testing.TB, cfg pool.Config) *pool.Pool {
	t.Helper()
	return startPoolBeside(t, cfg, func() int { return 0 })
}

// startPoolBeside is startPool with a number of goroutines that wait for a processor.
func startPoolBeside(t testing.TB, cfg pool.Config, runnable func() int) *pool.Pool {
	t.Helper()
	p, err := pool.NewWithRunnable(cfg, runnable)
	testkit.RequireNoError(t, err)
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

// mustSubmit submits a job n times.
func mustSubmit(t testing.TB, p *pool.Pool, n int, job pool.Func) {
	t.Helper()
	for range n {
		mustSubmitTask(t, p, pool.Task{Job: job})
	}
}

func mustSubmitTask(t testing.TB, p *pool.Pool, task pool.Task) {
	t.Helper()
	testkit.RequireNoError(t, p.TrySubmitTask(task))
}

func noopJob(context.Context) {}

func sleepFor(d time.Duration) pool.Func { return func(context.Context) { time.Sleep(d) } }

// occupyWorkers keeps n workers busy until release is called or the test ends.
func occupyWorkers(t testing.TB, p *pool.Pool, n int) (release func()) {
	t.Helper()
	started, gate := make(chan struct{}, n), make(chan struct{})
	release = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(release)
	for range n {
		err := p.Submit(context.Background(), func(context.Context) { started <- struct{}{}; <-gate })
		testkit.RequireNoError(t, err)
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

func expectCallRuns(t testing.TB, p *pool.Pool, ctx context.Context) {
	t.Helper()
	n, err := pool.Call(ctx, p, func(context.Context) (int, error) { return 2, nil })
	if n != 2 || err != nil {
		t.Errorf("a call gives %d, %v; expected 2", n, err)
	}
}

func newEndedContext(why error) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(why)
	return ctx
}

var errWhy = errors.New("the reason of the test")

// recordedJob records its outcome. It must not have two.
type recordedJob struct {
	t       testing.TB
	do      pool.Func             // may be nil
	outcome atomic.Pointer[error] // errRan, or why it was dropped
}

var errRan = errors.New("it has run")

// newJobs returns n jobs. do may be nil.
func newJobs(t testing.TB, n int, do pool.Func) []recordedJob {
	jobs := make([]recordedJob, n)
	for i := range jobs {
		jobs[i].t, jobs[i].do = t, do
	}
	return jobs
}

func submitJobs(t testing.TB, p *pool.Pool, n int, do pool.Func) []recordedJob {
	t.Helper()
	jobs := newJobs(t, n, do)
	for i := range jobs {
		mustSubmitTask(t, p, pool.Task{Job: &jobs[i]})
	}
	return jobs
}

func (j *recordedJob) record(outcome error) {
	if !j.outcome.CompareAndSwap(nil, &outcome) {
		j.t.Errorf("a job has two outcomes: %v, and %v", *j.outcome.Load(), outcome)
	}
}

func (j *recordedJob) Run(ctx context.Context) {
	j.record(errRan)
	if j.do != nil {
		j.do(ctx)
	}
}

func (j *recordedJob) Dropped(why error) { j.record(why) }

// expect checks that the outcome is all of want. If want is nil, there must be none.
func (j *recordedJob) expect(want ...error) {
	j.t.Helper()
	var got error
	if o := j.outcome.Load(); o != nil {
		got = *o
	}
	for _, w := range want {
		if !errors.Is(got, w) {
			j.t.Errorf("the outcome of a job is: %v; expected %v", got, w)
		}
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
	for _, queue := range []int{16, pool.NoQueue} {
		p := startPool(t, pool.Config{Max: 1, Queue: queue, Target: time.Hour})
		const blocked = 5
		gate := make(chan struct{})
		var entered, left sync.WaitGroup
		entered.Add(blocked)
		left.Add(blocked)
		for range blocked {
			testkit.RequireNoError(t, p.Submit(context.Background(), func(context.Context) {
				defer left.Done()
				p.Block(func() { entered.Done(); <-gate })
			}))
		}
		entered.Wait()
		if n := p.Stats().Running; n != blocked {
			t.Errorf("queue %d: %d jobs run; expected %d", queue, n, blocked)
		}
		expectCallRuns(t, p, context.Background()) // beside those that are blocked
		close(gate)
		left.Wait()
		testkit.WaitFor(t, "more workers are left than Max", func() bool { return p.Stats().Workers <= 1 })
	}
}
