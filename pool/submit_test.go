package pool_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/pool"
)

// Submits that wait for space get it roughly in order, although others keep coming.
func TestNoWaiterStarves(t *testing.T) {
	for _, queue := range []int{pool.NoQueue, 1, 64, 500} {
		synctest.Test(t, func(t *testing.T) {
			p := startPool(t, fixedConfig(1, queue))
			release := occupyWorkers(t, p, 1)
			for range max(queue, 0) {
				mustSubmit(t, p, noopJob)
			}
			// A thousand wait; then each one that is accepted is followed by another. A job takes a
			// millisecond, so one round takes a second.
			const waiting, each = 1000, 5
			var worst atomic.Int64
			var wg sync.WaitGroup
			for range waiting {
				wg.Go(func() {
					for range each {
						begin := time.Now()
						if err := p.Submit(context.Background(), func(context.Context) { time.Sleep(time.Millisecond) }); err != nil {
							t.Errorf("Submit: %v", err)
						}
						waited := int64(time.Since(begin))
						for w := worst.Load(); waited > w && !worst.CompareAndSwap(w, waited); w = worst.Load() {
						}
					}
				})
			}
			synctest.Wait()
			release()
			wg.Wait()
			if w := time.Duration(worst.Load()); w > 1500*time.Millisecond {
				t.Errorf("queue %d: one has waited %v; expected a second or so", queue, w)
			}
		})
	}
}

func TestNilFuncPanics(t *testing.T) {
	p := startPool(t, pool.Config{})
	for name, submit := range map[string]func(){
		"TrySubmit":  func() { _ = p.TrySubmit(nil) },
		"Submit":     func() { _ = p.Submit(t.Context(), nil) },
		"SubmitTask": func() { _ = p.SubmitTask(pool.Task{}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s of no job did not panic", name)
				}
			}()
			submit()
		}()
	}
}

func noopJob(context.Context) {}

// An idle pool rejects no job, whatever the length of its queue. A pool that only hands jobs to
// workers that wait at that moment would reject half of them.
func TestIdlePoolTurnsNothingAway(t *testing.T) {
	const jobs = 10_000
	for _, queue := range []int{pool.NoQueue, 1, 1024} {
		for _, least := range []int{0, 4} {
			p := startPool(t, pool.Config{Min: least, Queue: queue})
			done := make(chan struct{}, 1)
			job := pool.Func(func(context.Context) { done <- struct{}{} })
			for i := range jobs {
				var err error
				if i%2 == 0 {
					err = p.TrySubmitTask(pool.Task{Job: job, Ctx: t.Context()})
				} else {
					err = p.Submit(context.Background(), job)
				}
				if err != nil {
					t.Fatalf("queue %d, min %d, job %d: %v", queue, least, i, err)
				}
				testkit.Receive(t, done, "the job")
			}
			if s := p.Stats(); s.Accepted != jobs || s.Full+s.Late+s.Closed != 0 {
				t.Errorf("accepted %d of %d, full %d, late %d, closed %d", s.Accepted, jobs, s.Full, s.Late, s.Closed)
			}
		}
	}
}

// A job whose context has ended is not accepted, not even by an idle pool.
func TestLateJobsNeverRun(t *testing.T) {
	past, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	for _, queue := range []int{pool.NoQueue, 1024} {
		p := startPool(t, pool.Config{Min: 2, Queue: queue})
		for ctx, why := range map[context.Context]error{newEndedContext(errWhy): errWhy, past: context.DeadlineExceeded} {
			job := &recordedJob{t: t, name: "late"}
			task := pool.Task{Job: job, Ctx: ctx}
			for call, err := range map[string]error{
				"Submit":        p.Submit(ctx, job.Run),
				"SubmitTask":    p.SubmitTask(task),
				"TrySubmitTask": p.TrySubmitTask(task),
			} {
				if !errors.Is(err, pool.ErrExpired) || !errors.Is(err, why) {
					t.Errorf("%s: got %v; expected ErrExpired and %v", call, err, why)
				}
			}
			job.expectNoOutcome()
		}
		if s := p.Stats(); s.Late != 6 || s.Accepted != 0 || s.Expired != 0 {
			t.Errorf("late %d, accepted %d, expired %d; expected 6, 0, 0", s.Late, s.Accepted, s.Expired)
		}
	}
}

// A job whose context ends while it is queued does not run and is told why.
func TestJobsExpireInTheQueue(t *testing.T) {
	for _, queue := range []int{64, 4096} {
		for _, plain := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) { testExpiryInQueue(t, queue, plain) })
		}
	}
}

func testExpiryInQueue(t *testing.T, queue int, plain bool) {
	p := startPool(t, plainConfig(1, queue, plain))
	release := occupyWorkers(t, p, 1)
	cancelled, cancel := context.WithCancelCause(context.Background())
	deadline, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	ctxs, causes := []context.Context{nil, cancelled, deadline}, []error{nil, errWhy, context.DeadlineExceeded}
	jobs := make([]recordedJob, 60)
	for i := range jobs {
		jobs[i] = recordedJob{t: t, name: fmt.Sprintf("%d, to end with %v", i, causes[i%3])}
		mustSubmitTask(t, p, pool.Task{Job: &jobs[i], Ctx: ctxs[i%3]})
	}
	cancel(errWhy)
	time.Sleep(2 * time.Second)
	release()
	synctest.Wait()
	for i := range jobs {
		if cause := causes[i%3]; cause == nil {
			jobs[i].expectRan()
		} else {
			jobs[i].expectDropped(pool.ErrExpired, cause)
		}
	}
	if s := p.Stats(); s.Expired != 40 || s.Finished != 21 || s.Shed != 0 {
		t.Errorf("expired %d, finished %d, shed %d; expected 40, 21, 0", s.Expired, s.Finished, s.Shed)
	}
}

// A Submit that waits for space returns when its context ends, and its job does not run.
func TestWaitForRoomEndsWithTheContext(t *testing.T) {
	for _, queue := range []int{pool.NoQueue, 1, 64} {
		synctest.Test(t, func(t *testing.T) {
			p := startPool(t, fixedConfig(1, queue))
			release := occupyWorkers(t, p, 1)
			for range max(queue, 0) {
				mustSubmit(t, p, noopJob)
			}
			ctx, cancel := context.WithTimeoutCause(context.Background(), time.Second, errWhy)
			defer cancel()
			const waiting = 10
			jobs, errs := make([]recordedJob, waiting), make(chan error, waiting)
			begin := time.Now()
			for i := range jobs {
				jobs[i] = recordedJob{t: t, name: "waits for room"}
				go func() { errs <- p.SubmitTask(pool.Task{Job: &jobs[i], Ctx: ctx}) }()
			}
			for range waiting {
				// It has waited for space in vain until its context ended; the name of the error
				// does not matter.
				err := testkit.Receive(t, errs, "Submit")
				if !errors.Is(err, pool.ErrExpired) && !errors.Is(err, pool.ErrFull) || !errors.Is(err, errWhy) {
					t.Errorf("queue %d: got %v; expected ErrExpired or ErrFull, and the cause", queue, err)
				}
			}
			if waited := time.Since(begin); waited != time.Second {
				t.Errorf("queue %d: waited %v; expected a second", queue, waited)
			}
			release()
			synctest.Wait()
			for i := range jobs {
				jobs[i].expectNoOutcome()
			}
			if s := p.Stats(); s.Full+s.Late != waiting || s.Accepted != uint64(1+max(queue, 0)) {
				t.Errorf("queue %d: full %d, late %d, accepted %d; expected %d of the first two, %d", queue, s.Full, s.Late, s.Accepted, waiting, 1+max(queue, 0))
			}
			if err := p.TrySubmit(noopJob); err != nil {
				t.Errorf("queue %d: the pool is idle again, but: %v", queue, err)
			}
		})
	}
}
