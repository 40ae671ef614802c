package pool_test

import (
	"context"
	"errors"
	"fmt"
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
	for _, queue := range []int{pool.NoQueue, 1, 64} {
		for _, forced := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				p := startPool(t, fixedConfig(1, queue))
				release := occupyWorkers(t, p, 1)
				const waiting = 100
				jobs, errs := make([]recordedJob, max(queue, 0)+waiting), make([]error, max(queue, 0)+waiting)
				var wg sync.WaitGroup
				for i := range jobs {
					jobs[i] = recordedJob{t: t, name: fmt.Sprint(i)}
					wg.Go(func() { errs[i] = p.SubmitTask(pool.Task{Job: &jobs[i]}) })
					synctest.Wait()
				}
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				closed := make(chan []pool.Task, 1)
				go func() { closed <- closeAndCheck(t, p, ctx) }()
				synctest.Wait()
				for _, err := range []error{p.TrySubmit(noopJob), p.Submit(context.Background(), noopJob)} {
					if !errors.Is(err, pool.ErrClosed) {
						t.Errorf("a submission while Close waits: %v; expected ErrClosed", err)
					}
				}
				if forced {
					cancel()
					synctest.Wait()
				}
				release()
				dropped := testkit.Receive(t, closed, "Close")
				wg.Wait()
				refused := 0
				for i, err := range errs {
					switch {
					case errors.Is(err, pool.ErrClosed):
						refused++
						jobs[i].expectNoOutcome()
					case err != nil:
						t.Errorf("queue %d: Submit while Close runs: %v; expected nil or ErrClosed", queue, err)
					case forced:
						jobs[i].expectDropped(pool.ErrClosed)
					default:
						jobs[i].expectRan()
					}
				}
				if want := len(jobs) - refused; forced && len(dropped) != want || !forced && len(dropped) != 0 {
					t.Errorf("queue %d, forced %v: Close returned %d jobs, with %d accepted", queue, forced, len(dropped), want)
				}
				if s := expectBalanced(t, p); s.Closed != uint64(refused)+2 {
					t.Errorf("queue %d: Closed is %d; expected %d", queue, s.Closed, refused+2)
				}
			})
		}
	}
}

// A second Close may have a shorter deadline than the first. Then both return, and each job is
// returned by one of them.
func TestSecondCloseForces(t *testing.T) {
	for _, closers := range []int{1, 4} {
		synctest.Test(t, func(t *testing.T) {
			p := startPool(t, fixedConfig(2, 64))
			for range 2 {
				mustSubmit(t, p, func(ctx context.Context) { <-ctx.Done() })
			}
			synctest.Wait()
			jobs := make([]recordedJob, 50)
			for i := range jobs {
				jobs[i] = recordedJob{t: t, name: fmt.Sprint(i)}
				mustSubmitTask(t, p, pool.Task{Job: &jobs[i]})
			}
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
				jobs[i].expectDropped(pool.ErrClosed)
				if n := times[&jobs[i]]; n != 1 {
					t.Errorf("job %d was returned %d times; expected once", i, n)
				}
			}
			expectBalanced(t, p)
		})
	}
}

// When Close gives up waiting, the contexts of running jobs end, also of those with a context of
// their own, and queued jobs are returned as they were submitted.
func TestForcedCloseReachesBusyJobs(t *testing.T) {
	for _, wait := range []time.Duration{0, 5 * time.Second} {
		synctest.Test(t, func(t *testing.T) { testForcedClose(t, wait) })
	}
}

type ctxKey struct{}

func testForcedClose(t *testing.T, wait time.Duration) {
	own, cancelOwn := context.WithCancel(context.WithValue(context.Background(), ctxKey{}, "mine"))
	defer cancelOwn()
	deadline, stop := context.WithTimeout(own, time.Hour)
	defer stop()
	ctxs := []context.Context{nil, context.Background(), own, deadline, context.WithValue(own, ctxKey{}, "more")}
	p := startPool(t, fixedConfig(len(ctxs), 64))
	causes := make([]error, len(ctxs))
	for i, ctx := range ctxs {
		job := pool.Func(func(ctx context.Context) {
			// Wait for a derived context, as jobs do.
			below, cancel := context.WithCancel(ctx)
			defer cancel()
			<-below.Done()
			if ctx.Err() == nil {
				t.Errorf("context %d: a context below it has ended before it", i)
			}
			causes[i] = context.Cause(ctx)
			if got := context.Cause(below); !errors.Is(got, pool.ErrClosed) {
				t.Errorf("context %d: the cause below is %v; expected ErrClosed", i, got)
			}
		})
		mustSubmitTask(t, p, pool.Task{Job: job, Ctx: ctx})
	}
	synctest.Wait()
	waits := make([]recordedJob, 20)
	tasks := map[pool.Job]pool.Task{}
	for i := range waits {
		waits[i] = recordedJob{t: t, name: fmt.Sprint("waits ", i)}
		task := pool.Task{Job: &waits[i], Ctx: ctxs[i%len(ctxs)]}
		tasks[task.Job] = task
		mustSubmitTask(t, p, task)
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	begin := time.Now()
	dropped := closeAndCheck(t, p, ctx)
	if took := time.Since(begin); took < wait || took > wait+100*time.Millisecond {
		t.Errorf("Close took %v; expected %v", took, wait)
	}
	for i, cause := range causes {
		if !errors.Is(cause, pool.ErrClosed) {
			t.Errorf("context %d: the cause is %v; expected ErrClosed", i, cause)
		}
	}
	if own.Err() != nil || deadline.Err() != nil {
		t.Error("Close has ended a context that is not the pool's")
	}
	if len(dropped) != len(waits) {
		t.Errorf("%d jobs were returned; expected %d", len(dropped), len(waits))
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
		waits[i].expectDropped(pool.ErrClosed)
	}
	if s := expectBalanced(t, p); s.Finished != uint64(len(ctxs)) || s.Dropped != uint64(len(waits)) {
		t.Errorf("finished %d, dropped %d; expected %d, %d", s.Finished, s.Dropped, len(ctxs), len(waits))
	}
}

// The context of a running job ends with the context of its submission, and has its values and
// deadline.
func TestJobContextFollowsItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPool(t, fixedConfig(2, 64))
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
	synctest.Test(t, func(t *testing.T) {
		p, err := pool.New(fixedConfig(3, 64))
		if err != nil {
			t.Fatal(err)
		}
		release := occupyWorkers(t, p, 3)
		job := &recordedJob{t: t, name: "waits"}
		mustSubmitTask(t, p, pool.Task{Job: job})
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
		job.expectDropped(pool.ErrClosed)
		begin = time.Now()
		if _, err := p.Close(newEndedContext(nil)); err == nil || time.Since(begin) > 2*time.Second {
			t.Errorf("a second Close took %v: %v; expected an error because of the jobs that still run", time.Since(begin), err)
		}
		release()
		if dropped, err := p.Close(context.Background()); err != nil || len(dropped) != 0 {
			t.Errorf("Close when all has ended: %v, %v", dropped, err)
		}
		expectBalanced(t, p)
	})
}

// A panic in Dropped is reported and affects nothing else.
func TestDroppedPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var heard []*pool.PanicError
		p, err := pool.New(pool.Config{Max: 1, Queue: 8, Panicked: func(e *pool.PanicError) { heard = append(heard, e) }})
		if err != nil {
			t.Fatal(err)
		}
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
		if n, err := pool.Call(context.Background(), p, func(context.Context) (int, error) { return 1, nil }); n != 1 || err != nil {
			t.Errorf("the next call: %d, %v", n, err)
		}
		closeAndCheck(t, p, context.Background())
	})
}

type odd struct {
	context.Context
	_ []int
}

// Contexts of any type are supported.
func TestContextsThatCannotBeCompared(t *testing.T) {
	p, err := pool.New(pool.Config{Max: 1})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if n, err := pool.Call(odd{Context: t.Context()}, p, func(context.Context) (int, error) { return 1, nil }); n != 1 || err != nil {
			t.Errorf("got %d, %v", n, err)
		}
	}
	closeAndCheck(t, p, context.Background())
}
