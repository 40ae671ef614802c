package pool_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/pool"
)

// The faults of pools that others have had: each test here fails on a pool with it.
// Those of closing are in close_test.go, those of too few workers in resize_test.go.

func nothing(context.Context) {}

// A pool without work turns no job away, however long its queue is: one that
// hands over only to a worker that waits right now turns away half of them.
func TestIdlePoolTurnsNothingAway(t *testing.T) {
	const jobs = 10_000
	for _, queue := range []int{pool.NoQueue, 1, 1024} {
		for _, least := range []int{0, 4} {
			t.Run(fmt.Sprintf("queue %d min %d", queue, least), func(t *testing.T) {
				p := start(t, pool.Config{Min: least, Queue: queue})
				done := make(chan struct{}, 1)
				job := pool.Func(func(context.Context) { done <- struct{}{} })
				for i := range jobs {
					var err error
					switch i % 3 {
					case 0:
						err = p.TrySubmit(job)
					case 1:
						err = p.Submit(context.Background(), job)
					case 2:
						err = p.TrySubmitTask(pool.Task{Job: job, Ctx: t.Context(), Key: uint64(i), Priority: pool.Low})
					}
					if err != nil {
						t.Fatalf("job %d: %v", i, err)
					}
					receive(t, done, "the job")
				}
				if s := p.Stats(); s.Accepted != jobs || s.Full+s.Late+s.Closed != 0 {
					t.Errorf("accepted %d of %d, full %d, late %d, closed %d", s.Accepted, jobs, s.Full, s.Late, s.Closed)
				}
			})
		}
	}
}

// The same with a single worker, each time it has come to rest.
func TestIdleWorkerTakesTheJob(t *testing.T) {
	for _, least := range []int{0, 1} {
		for _, queue := range []int{pool.NoQueue, 1} {
			synctest.Test(t, func(t *testing.T) {
				p := start(t, pool.Config{Min: least, Max: 1, Queue: queue})
				for i := range 500 {
					synctest.Wait()
					if err := p.TrySubmit(nothing); err != nil {
						t.Fatalf("min %d queue %d, job %d: %v", least, queue, i, err)
					}
					if i%50 == 0 {
						time.Sleep(time.Minute) // the worker may have gone
					}
				}
			})
		}
	}
}

// A job whose context has ended is not accepted, not even by a pool without work.
func TestLateJobsNeverRun(t *testing.T) {
	for _, queue := range []int{pool.NoQueue, 1024} {
		p, err := pool.New(pool.Config{Min: 2, Queue: queue})
		if err != nil {
			t.Fatal(err)
		}
		ctx := ended(errWhy)
		past, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
		defer cancel()
		ran := func(context.Context) { t.Error("a job ran whose context had ended") }
		const rounds = 1000
		for range rounds {
			job := &noted{t: t, name: "late"}
			for call, err := range map[string]error{
				"Submit":          p.Submit(ctx, ran),
				"SubmitTask":      p.SubmitTask(pool.Task{Job: job, Ctx: ctx}),
				"TrySubmitTask":   p.TrySubmitTask(pool.Task{Job: job, Ctx: ctx}),
				"SubmitTask High": p.SubmitTask(pool.Task{Job: job, Ctx: ctx, Priority: pool.High}),
			} {
				if !errors.Is(err, pool.ErrExpired) || !errors.Is(err, errWhy) {
					t.Fatalf("%s: got %v; expected ErrExpired and the cause", call, err)
				}
			}
			if err := p.Submit(past, ran); !errors.Is(err, pool.ErrExpired) || !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("a deadline in the past: got %v; expected ErrExpired and DeadlineExceeded", err)
			}
			job.mustNothing()
		}
		if _, err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if s := balance(t, p); s.Late != 5*rounds || s.Accepted != 0 || s.Expired != 0 {
			t.Errorf("late %d, accepted %d, expired %d; expected %d, 0, 0", s.Late, s.Accepted, s.Expired, 5*rounds)
		}
	}
}

// A job whose context ends while it waits in the queue does not run, and hears why.
func TestJobsExpireInTheQueue(t *testing.T) {
	for _, queue := range []int{64, 4096} {
		for _, off := range []pool.Rules{0, pool.AllRules} {
			synctest.Test(t, func(t *testing.T) { expireInTheQueue(t, queue, off) })
		}
	}
}

func expireInTheQueue(t *testing.T, queue int, off pool.Rules) {
	cfg := fixed(1, queue)
	cfg.Off = off
	p := start(t, cfg)
	release := hold(t, p, 1)
	cancelled, cancel := context.WithCancelCause(context.Background())
	deadline, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	var live, gone, late []*noted
	submit := func(list *[]*noted, ctx context.Context, name string) {
		job := &noted{t: t, name: name}
		*list = append(*list, job)
		task := pool.Task{Job: job, Ctx: ctx, Key: uint64(len(*list) % 3), Priority: pool.Priority(len(*list)%3 - 1)}
		if err := p.TrySubmitTask(task); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	for range 20 {
		submit(&live, nil, "without a context")
		submit(&gone, cancelled, "cancelled")
		submit(&late, deadline, "past its deadline")
	}
	cancel(errWhy)
	time.Sleep(2 * time.Second)
	release()
	synctest.Wait()
	for _, job := range live {
		job.mustRun()
	}
	for _, job := range gone {
		job.mustDrop(pool.ErrExpired, errWhy)
	}
	for _, job := range late {
		job.mustDrop(pool.ErrExpired, context.DeadlineExceeded)
	}
	if s := p.Stats(); s.Expired != 40 || s.Finished != 21 || s.Shed != 0 {
		t.Errorf("expired %d, finished %d, shed %d; expected 40, 21, 0", s.Expired, s.Finished, s.Shed)
	}
}

// A Submit that waits for room leaves when its context ends, and its job does not
// run then.
func TestWaitForRoomEndsWithTheContext(t *testing.T) {
	for _, queue := range []int{pool.NoQueue, 1, 64} {
		synctest.Test(t, func(t *testing.T) {
			p := start(t, fixed(1, queue))
			release := hold(t, p, 1)
			for range max(queue, 0) {
				if err := p.TrySubmit(nothing); err != nil {
					t.Fatalf("queue %d: %v", queue, err)
				}
			}
			ctx, cancel := context.WithTimeoutCause(context.Background(), time.Second, errWhy)
			defer cancel()
			const waiting = 10
			jobs, errs := make([]noted, waiting), make(chan error, waiting)
			begin := time.Now()
			for i := range jobs {
				jobs[i] = noted{t: t, name: "waits for room"}
				go func() { errs <- p.SubmitTask(pool.Task{Job: &jobs[i], Ctx: ctx}) }()
			}
			for range waiting {
				// What it is called is not the matter here: it waited for room,
				// in vain, until its context ended.
				err := receive(t, errs, "Submit")
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
				jobs[i].mustNothing()
			}
			if s := p.Stats(); s.Full+s.Late != waiting || s.Accepted != uint64(1+max(queue, 0)) {
				t.Errorf("queue %d: full %d, late %d, accepted %d; expected %d of the first two, %d", queue, s.Full, s.Late, s.Accepted, waiting, 1+max(queue, 0))
			}
			if err := p.TrySubmit(nothing); err != nil {
				t.Errorf("queue %d: the pool is idle again, but: %v", queue, err)
			}
		})
	}
}
