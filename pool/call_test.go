package pool_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/pool"
)

type ctxKey struct{}

func TestCallGivesResultAndError(t *testing.T) {
	p := startPool(t, pool.Config{})
	ctx := context.WithValue(context.Background(), ctxKey{}, "mine")
	got, err := pool.Call(ctx, p, func(ctx context.Context) (any, error) { return ctx.Value(ctxKey{}), errWhy })
	if got != "mine" || err != errWhy {
		t.Errorf("got %v, %v; expected both of what it returned", got, err)
	}
}

func writeNilMap(m map[int]int) { m[1]++ }

// panics are ways for a job to end without returning.
var panics = []struct {
	name string
	do   func()
	is   func(v any) bool
	err  error // what errors.Is finds
}{
	{"a string", func() { panic("a string") }, func(v any) bool { return v == "a string" }, nil},
	{"an error", func() { panic(errWhy) }, func(v any) bool { return v == any(errWhy) }, errWhy},
	{"nil", func() { panic(nil) }, func(v any) bool { _, ok := v.(*runtime.PanicNilError); return ok }, nil},
	{"nil map", func() { writeNilMap(nil) }, func(v any) bool { _, ok := v.(runtime.Error); return ok }, nil},
	{"a panic on the way out", func() { defer func() { panic(errWhy) }(); runtime.Goexit() }, func(v any) bool { return v == any(errWhy) }, errWhy},
	{"Goexit", runtime.Goexit, func(v any) bool { return v == any(pool.ErrGoexit) }, pool.ErrGoexit},
}

// A panic ends only its job, or its call with that error; the worker continues, and Panicked is
// called once.
func TestPanicsAreContained(t *testing.T) {
	for _, c := range panics {
		t.Run(c.name, func(t *testing.T) {
			var heard []*pool.PanicError
			cfg := fixedConfig(1, 64)
			cfg.Panicked = func(e *pool.PanicError) { heard = append(heard, e); panic("in the callback") }
			inBubble(t, cfg, func(t *testing.T, p *pool.Pool) {
				mustSubmit(t, p, 10, func(context.Context) { c.do() })
				synctest.Wait()
				n, err := pool.Call(context.Background(), p, func(context.Context) (int, error) { c.do(); return 1, nil })
				synctest.Wait()
				var e *pool.PanicError
				if !errors.As(err, &e) || n != 0 || len(heard) != 11 || heard[10] != e {
					t.Fatalf("got %d, %v, and Panicked has heard of %v; expected a *PanicError, of 11", n, err, heard)
				}
				for _, e := range heard {
					if !c.is(e.Value) || c.err != nil && !errors.Is(e, c.err) || !strings.Contains(e.Error(), fmt.Sprint(e.Value)) {
						t.Errorf("%v, with the value %#v", e, e.Value)
					}
					if !strings.Contains(string(e.Stack), "call_test.go") {
						t.Errorf("the stack has not the place of the panic:\n%s", e.Stack)
					}
				}
				if s := p.Stats(); s.Panicked != 11 || s.Finished != 11 || s.Workers != 1 || s.Running != 0 {
					t.Errorf("panicked %d, finished %d, workers %d, running %d; expected 11, 11, 1, 0", s.Panicked, s.Finished, s.Workers, s.Running)
				}
				expectCallRuns(t, p, context.Background())
			})
		})
	}
}

// Call returns why f did not run.
func TestCallThatDoesNotRun(t *testing.T) {
	soon := func(f func()) { time.AfterFunc(time.Second, f) }
	hold := func(t *testing.T, p *pool.Pool) { occupyWorkers(t, p, 1) }
	none := func(*testing.T, *pool.Pool) {}
	for name, c := range map[string]struct {
		cfg     pool.Config
		ctx     context.Context // nil: it ends after a second
		prepare func(t *testing.T, p *pool.Pool)
		want    []error
	}{
		"late":   {pool.Config{}, newEndedContext(errWhy), none, []error{pool.ErrExpired, errWhy}},
		"closed": {pool.Config{}, nil, func(t *testing.T, p *pool.Pool) { closeAndCheck(t, p, t.Context()) }, []error{pool.ErrClosed}},
		"dropped by Close": {fixedConfig(1, 64), context.Background(), func(t *testing.T, p *pool.Pool) {
			mustSubmit(t, p, 1, func(ctx context.Context) { <-ctx.Done() })
			synctest.Wait()
			soon(func() { _, _ = p.Close(newEndedContext(nil)) })
		}, []error{pool.ErrClosed}},
		"shed": {pool.Config{Min: 1, Max: 1, Queue: oneShard}, context.Background(), func(t *testing.T, p *pool.Pool) {
			hold(t, p)
			soon(func() { mustSubmit(t, p, 1, noopJob) }) // the last one is never shed
		}, []error{pool.ErrShed}},
		"expired in the queue":    {fixedConfig(1, 64), nil, hold, []error{pool.ErrExpired, errWhy}},
		"no room without a queue": {fixedConfig(1, pool.NoQueue), nil, hold, []error{errWhy}},
		"no room in the queue": {fixedConfig(1, oneShard), nil, func(t *testing.T, p *pool.Pool) {
			hold(t, p)
			mustSubmit(t, p, oneShard, noopJob)
		}, []error{errWhy}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, c.cfg, func(t *testing.T, p *pool.Pool) {
				c.prepare(t, p)
				if c.ctx == nil {
					ctx, cancel := context.WithTimeoutCause(context.Background(), time.Second, errWhy)
					defer cancel()
					c.ctx = ctx
				}
				begin := time.Now()
				n, err := pool.Call(c.ctx, p, func(context.Context) (int, error) { return 1, errors.New("it ran") })
				for _, want := range c.want {
					if n != 0 || !errors.Is(err, want) {
						t.Errorf("got %d, %v; expected 0, %v", n, err, want)
					}
				}
				if took := time.Since(begin); took > 1100*time.Millisecond {
					t.Errorf("it took %v; expected a second at most", took)
				}
			})
		})
	}
}

// Call does not wait for a running function after its context has ended.
func TestCallLeavesWithItsContext(t *testing.T) {
	inBubble(t, fixedConfig(1, 64), func(t *testing.T, p *pool.Pool) {
		ctx, cancel := context.WithTimeoutCause(context.Background(), time.Second, errWhy)
		defer cancel()
		gate := make(chan struct{})
		var end atomic.Value // why the context of the function has ended
		begin := time.Now()
		n, err := pool.Call(ctx, p, func(ctx context.Context) (int, error) {
			<-gate
			end.Store(context.Cause(ctx))
			return 1, nil
		})
		if took := time.Since(begin); n != 0 || err != errWhy || took != time.Second {
			t.Errorf("got %d, %v after %v; expected 0 and the cause, after a second", n, err, took)
		}
		close(gate)
		synctest.Wait()
		if end.Load() != errWhy {
			t.Errorf("the function has seen its context end for %v; expected that, and the cause", end.Load())
		}
	})
}

// Submitting a prepared job allocates nothing, nor does a TrySubmit that finds no room.
func TestSubmitAllocatesNothing(t *testing.T) {
	for _, queue := range []int{pool.NoQueue, 64, 4096} {
		p := startPool(t, fixedConfig(2, queue))
		done := make(chan struct{})
		job := pool.Func(func(context.Context) { done <- struct{}{} })
		shared, cancel := context.WithCancel(context.Background())
		defer cancel()
		submits := map[string]func() error{
			"Submit, Background":     func() error { return p.Submit(context.Background(), job) },
			"Submit, shared context": func() error { return p.Submit(shared, job) },
			"SubmitTask":             func() error { return p.SubmitTask(pool.Task{Job: job}) },
		}
		if queue != pool.NoQueue { // where a worker must be idle already
			submits["TrySubmit"] = func() error { return p.TrySubmit(job) }
			submits["TrySubmitTask"] = func() error { return p.TrySubmitTask(pool.Task{Job: job, Ctx: shared}) }
		}
		for name, submit := range submits {
			n := testing.AllocsPerRun(2000, func() {
				if err := submit(); err != nil {
					t.Error(err)
					return
				}
				<-done
			})
			if n != 0 {
				t.Errorf("queue %d: %s allocates %v times; expected 0", queue, name, n)
			}
		}
		defer occupyWorkers(t, p, 2)()
		for p.TrySubmit(noopJob) == nil {
		}
		if n := testing.AllocsPerRun(1000, func() { _ = p.TrySubmit(noopJob) }); n != 0 {
			t.Errorf("queue %d: a TrySubmit that finds no room allocates %v times; expected 0", queue, n)
		}
	}
}

// A context that was submitted before with an earlier job does not end with that job's Run.
func TestSharedContextOutlivesItsJobs(t *testing.T) {
	inBubble(t, fixedConfig(1, 1), func(t *testing.T, p *pool.Pool) {
		shared, cancel := context.WithCancel(context.Background())
		defer cancel()
		for i := range 6 {
			mustSubmitTask(t, p, pool.Task{Ctx: shared, Job: pool.Func(func(ctx context.Context) {
				if ctx.Err() != nil {
					t.Errorf("job %d: its context has ended: %v", i, ctx.Err())
				}
				if i%3 == 2 {
					ctx.Done()
				}
			})})
			synctest.Wait() // the worker is parked
		}
	})
}

type uncomparable struct {
	context.Context
	_ []int
}

func TestContextsThatCannotBeCompared(t *testing.T) {
	p := startPool(t, pool.Config{Max: 1})
	for range 3 {
		expectCallRuns(t, p, uncomparable{Context: t.Context()})
	}
}
