package pool_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/pool"
)

// A Submit that waits for space when Close begins returns ErrClosed, or nil if its job still
// runs.
func TestCloseFreesThoseThatWaitForRoom(t *testing.T) {
	for _, queue := range []int{pool.NoQueue, 64} {
		inBubble(t, fixedConfig(1, queue), func(t *testing.T, p *pool.Pool) {
			release := occupyWorkers(t, p, 1)
			jobs := newJobs(t, max(queue, 0)+100, nil)
			errs := make([]error, len(jobs))
			var wg sync.WaitGroup
			for i := range jobs {
				wg.Go(func() { errs[i] = p.SubmitTask(pool.Task{Job: &jobs[i]}) })
				synctest.Wait()
			}
			wg.Go(func() { closeAndCheck(t, p, context.Background()) })
			synctest.Wait()
			for _, err := range []error{p.TrySubmit(noopJob), p.Submit(context.Background(), noopJob)} {
				if !errors.Is(err, pool.ErrClosed) {
					t.Errorf("a submission while Close waits: %v; expected ErrClosed", err)
				}
			}
			release()
			wg.Wait()
			refused := uint64(0)
			for i, err := range errs {
				switch {
				case errors.Is(err, pool.ErrClosed):
					refused++
					jobs[i].expect(nil)
				case err != nil:
					t.Errorf("queue %d: Submit while Close runs: %v; expected nil or ErrClosed", queue, err)
				default:
					jobs[i].expect(errRan)
				}
			}
			if s := expectBalanced(t, p); s.Closed != refused+2 {
				t.Errorf("queue %d: Closed is %d; expected %d", queue, s.Closed, refused+2)
			}
		})
	}
}

// A second Close may have a shorter deadline than the first. Then both return, and each job is
// returned by one of them.
func TestSecondCloseForces(t *testing.T) {
	inBubble(t, fixedConfig(2, 64), func(t *testing.T, p *pool.Pool) {
		mustSubmit(t, p, 2, func(ctx context.Context) { <-ctx.Done() })
		synctest.Wait()
		jobs := submitJobs(t, p, 50, nil)
		const closers = 4
		returned := make(chan []pool.Task, 1+closers)
		go func() { returned <- closeAndCheck(t, p, context.Background()) }()
		synctest.Wait()
		for range closers {
			go func() { returned <- closeAndCheck(t, p, newEndedContext(errWhy)) }()
		}
		times := map[*recordedJob]int{}
		for range 1 + closers {
			for _, task := range testkit.Receive(t, returned, "Close") {
				times[task.Job.(*recordedJob)]++
			}
		}
		for i := range jobs {
			jobs[i].expect(pool.ErrClosed)
			if n := times[&jobs[i]]; n != 1 {
				t.Errorf("job %d was returned %d times; expected once", i, n)
			}
		}
		expectBalanced(t, p)
	})
}

// When Close gives up waiting, the contexts of running jobs end, also of those with a context of
// their own, and queued jobs are returned as they were submitted.
func TestForcedCloseReachesBusyJobs(t *testing.T) {
	inBubble(t, fixedConfig(5, 64), func(t *testing.T, p *pool.Pool) {
		own, cancelOwn := context.WithCancel(context.Background())
		defer cancelOwn()
		deadline, stop := context.WithTimeout(own, time.Hour)
		defer stop()
		ctxs := [5]context.Context{nil, context.Background(), own, deadline, context.WithValue(own, ctxKey{}, "more")}
		for i, ctx := range ctxs {
			job := pool.Func(func(ctx context.Context) {
				// Wait for a derived context, as jobs do.
				below, cancel := context.WithCancel(ctx)
				defer cancel()
				<-below.Done()
				for _, ctx := range []context.Context{ctx, below} {
					if cause := context.Cause(ctx); !errors.Is(cause, pool.ErrClosed) {
						t.Errorf("context %d: the cause of %v is %v; expected ErrClosed", i, ctx, cause)
					}
				}
			})
			mustSubmitTask(t, p, pool.Task{Job: job, Ctx: ctx})
		}
		synctest.Wait()
		waits := newJobs(t, 20, nil)
		tasks := map[pool.Job]pool.Task{}
		for i := range waits {
			task := pool.Task{Job: &waits[i], Ctx: ctxs[i%len(ctxs)]}
			tasks[task.Job] = task
			mustSubmitTask(t, p, task)
		}
		const wait = 5 * time.Second
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		begin := time.Now()
		dropped := closeAndCheck(t, p, ctx)
		if took := time.Since(begin); took < wait || took > wait+100*time.Millisecond {
			t.Errorf("Close took %v; expected %v", took, wait)
		}
		if own.Err() != nil || deadline.Err() != nil {
			t.Error("Close has ended a context that is not the pool's")
		}
		for _, task := range dropped {
			want := tasks[task.Job]
			if want.Ctx == context.Background() && task.Ctx == nil {
				want.Ctx = nil // it says the same
			}
			if task != want {
				t.Errorf("Close returned %+v; expected %+v", task, want)
			}
		}
		for i := range waits {
			waits[i].expect(pool.ErrClosed)
		}
		if s := expectBalanced(t, p); s.Finished != uint64(len(ctxs)) || s.Dropped != uint64(len(waits)) || len(dropped) != len(waits) {
			t.Errorf("finished %d, dropped %d, returned %d; expected %d, %d", s.Finished, s.Dropped, len(dropped), len(ctxs), len(waits))
		}
	})
}

// The context of a running job ends with the context of its submission, and has its values and
// deadline.
func TestJobContextFollowsItsOwn(t *testing.T) {
	inBubble(t, fixedConfig(2, 64), func(t *testing.T, p *pool.Pool) {
		own, cancel := context.WithCancelCause(context.WithValue(context.Background(), ctxKey{}, "mine"))
		deadline, stop := context.WithTimeout(own, time.Hour)
		defer stop()
		got := make(chan error, 2)
		for _, ctx := range []context.Context{own, deadline} {
			want, limited := ctx.Deadline()
			mustSubmitTask(t, p, pool.Task{Ctx: ctx, Job: pool.Func(func(ctx context.Context) {
				d, ok := ctx.Deadline()
				if v := ctx.Value(ctxKey{}); v != "mine" || ok != limited || !d.Equal(want) {
					t.Errorf("Value is %v, Deadline %v, %v; expected those of the context it was submitted with", v, d, ok)
				}
				<-ctx.Done()
				got <- context.Cause(ctx)
			})})
		}
		synctest.Wait()
		cancel(errWhy)
		for range 2 {
			if err := testkit.Receive(t, got, "the job"); !errors.Is(err, errWhy) {
				t.Errorf("the cause is %v; expected %v", err, errWhy)
			}
		}
	})
}

// Close does not wait forever for jobs that ignore their contexts, and returns their number.
func TestCloseOfJobsThatIgnoreIt(t *testing.T) {
	inBubble(t, fixedConfig(3, 64), func(t *testing.T, p *pool.Pool) {
		release := occupyWorkers(t, p, 3)
		jobs := submitJobs(t, p, 1, nil)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		begin := time.Now()
		dropped, err := p.Close(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "3 still run") {
			t.Errorf("got %v; expected an error that says that 3 jobs still run, and why", err)
		}
		if took := time.Since(begin) - time.Minute; took < 0 || took > 2*time.Second || len(dropped) != 1 {
			t.Errorf("Close took %v longer than its context and returned %d jobs; expected about a second, 1", took, len(dropped))
		}
		jobs[0].expect(pool.ErrClosed)
		begin = time.Now()
		if _, err := p.Close(newEndedContext(nil)); err == nil || time.Since(begin) > 2*time.Second {
			t.Errorf("a second Close took %v: %v; expected an error because of the jobs that still run", time.Since(begin), err)
		}
		release()
		if dropped := closeAndCheck(t, p, context.Background()); len(dropped) != 0 {
			t.Errorf("Close when all has ended: %v", dropped)
		}
		expectBalanced(t, p)
	})
}

// A panic in Dropped is reported and affects nothing else.
func TestDroppedPanics(t *testing.T) {
	var heard []*pool.PanicError
	cfg := pool.Config{Max: 1, Queue: 8, Panicked: func(e *pool.PanicError) { heard = append(heard, e) }}
	inBubble(t, cfg, func(t *testing.T, p *pool.Pool) {
		release := occupyWorkers(t, p, 1)
		ctx, cancel := context.WithCancel(context.Background())
		bad := &droppable{run: func(context.Context) { t.Error("it ran") }, dropped: func(error) { panic("bad manners") }}
		mustSubmitTask(t, p, pool.Task{Job: bad, Ctx: ctx})
		cancel()
		release()
		synctest.Wait()
		if len(heard) != 1 || heard[0].Value != "bad manners" {
			t.Errorf("Panicked has heard of %v", heard)
		}
		expectCallRuns(t, p, context.Background())
	})
}
