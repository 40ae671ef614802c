package pool_test

import (
	"context"
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
	for _, queue := range []int{pool.NoQueue, 1, 500} {
		inBubble(t, fixedConfig(1, queue), func(t *testing.T, p *pool.Pool) {
			release := occupyWorkers(t, p, 1)
			mustSubmit(t, p, max(queue, 0), noopJob)
			// A thousand wait; then each one that is accepted is followed by another. A job takes a
			// millisecond, so one round takes a second.
			const waiting, each = 1000, 5
			var worst atomic.Int64
			var wg sync.WaitGroup
			for range waiting {
				wg.Go(func() {
					for range each {
						begin := time.Now()
						testkit.ExpectNoError(t, p.Submit(context.Background(), sleepFor(time.Millisecond)))
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

func TestNilJobPanics(t *testing.T) {
	p := startPool(t, pool.Config{})
	for _, job := range []pool.Job{nil, pool.Func(nil)} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("submitting %#v did not panic", job)
				}
			}()
			_ = p.SubmitTask(pool.Task{Job: job})
		}()
	}
}

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

// A job whose context ends while it is queued does not run and is told why.
func TestJobsExpireInTheQueue(t *testing.T) {
	for queue, plain := range map[int]bool{64: false, 4096: true} {
		inBubble(t, plainConfig(1, queue, plain), func(t *testing.T, p *pool.Pool) {
			release := occupyWorkers(t, p, 1)
			cancelled, cancel := context.WithCancelCause(context.Background())
			deadline, stop := context.WithTimeout(context.Background(), time.Second)
			defer stop()
			ctxs, causes := []context.Context{nil, cancelled, deadline}, []error{nil, errWhy, context.DeadlineExceeded}
			jobs := newJobs(t, 60, nil)
			for i := range jobs {
				mustSubmitTask(t, p, pool.Task{Job: &jobs[i], Ctx: ctxs[i%3]})
			}
			cancel(errWhy)
			time.Sleep(2 * time.Second)
			release()
			synctest.Wait()
			for i := range jobs {
				if cause := causes[i%3]; cause == nil {
					jobs[i].expect(errRan)
				} else {
					jobs[i].expect(pool.ErrExpired, cause)
				}
			}
			if s := p.Stats(); s.Expired != 40 || s.Finished != 21 || s.Shed != 0 {
				t.Errorf("expired %d, finished %d, shed %d; expected 40, 21, 0", s.Expired, s.Finished, s.Shed)
			}
		})
	}
}
