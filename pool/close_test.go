package pool_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/pool"
)

// The context of a running job has the values and the deadline of its submission's. When one of several Closes
// gives up waiting, it ends, and queued jobs are returned as they were submitted.
func TestForcedCloseReachesBusyJobs(t *testing.T) {
	inBubble(t, fixedConfig(5, 64), func(t *testing.T, p *pool.Pool) {
		own, cancelOwn := context.WithCancel(context.WithValue(context.Background(), ctxKey{}, "mine"))
		defer cancelOwn()
		deadline, stop := context.WithTimeout(own, time.Hour)
		defer stop()
		ctxs := [5]context.Context{nil, context.Background(), own, deadline, context.WithValue(own, ctxKey{}, "more")}
		for i, submitted := range ctxs {
			job := pool.Func(func(ctx context.Context) {
				if submitted != nil {
					want, limited := submitted.Deadline()
					at, ok := ctx.Deadline()
					if v := ctx.Value(ctxKey{}); v != submitted.Value(ctxKey{}) || ok != limited || !at.Equal(want) {
						t.Errorf("context %d: Value is %v, Deadline %v, %v; expected those of the task", i, v, at, ok)
					}
				}
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
			mustSubmitTask(t, p, pool.Task{Job: job, Ctx: submitted})
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
		first := make(chan []pool.Task, 1)
		go func() { first <- closeAndCheck(t, p, context.Background()) }()
		begin := time.Now()
		dropped := closeAndCheck(t, p, ctx)
		dropped = append(dropped, testkit.Receive(t, first, "the first Close does not end with the second")...)
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
		if s := expectBalanced(t, p); s.Finished != 5 || s.Dropped != 20 || len(dropped) != 20 {
			t.Errorf("finished %d, dropped %d, returned %d; expected 5, 20, 20", s.Finished, s.Dropped, len(dropped))
		}
	})
}

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

// Close ends each Submit that waits for space at once, although the jobs that occupy the pool still run.
func TestCloseEndsWaitingSubmits(t *testing.T) {
	for _, queue := range []int{pool.NoQueue, 1, 500} {
		inBubble(t, fixedConfig(1, queue), func(t *testing.T, p *pool.Pool) {
			release := occupyWorkers(t, p, 1)
			mustSubmit(t, p, max(queue, 0), noopJob)
			const waiting = 10
			ended := make(chan error, waiting)
			for range waiting {
				go func() { ended <- p.Submit(context.Background(), noopJob) }()
			}
			synctest.Wait()
			closed := make(chan struct{})
			go func() {
				defer close(closed)
				closeAndCheck(t, p, context.Background())
			}()
			synctest.Wait()
			if n := len(ended); n != waiting {
				t.Errorf("queue %d: %d Submits of %d returned when the pool was closed", queue, n, waiting)
			}
			release()
			<-closed
			for range waiting {
				if err := <-ended; !errors.Is(err, pool.ErrClosed) {
					t.Errorf("queue %d: Submit returned %v; expected ErrClosed", queue, err)
				}
			}
		})
	}
}
