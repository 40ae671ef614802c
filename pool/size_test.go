package pool_test

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/pool"
)

// The number of workers never drops below Min, whatever jobs do.
func TestNeverUnderMin(t *testing.T) {
	for name, job := range map[string]pool.Func{
		"quick": noopJob,
		"panic": func(context.Context) { panic("a job panics") },
		"exit":  func(context.Context) { runtime.Goexit() },
		"sleep": func(context.Context) { time.Sleep(20 * time.Millisecond) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const least = 8
				p := startPool(t, pool.Config{Min: least, Max: 64, Queue: 4096})
				check := func(when string) {
					t.Helper()
					synctest.Wait()
					if s := p.Stats(); s.Workers < least {
						t.Fatalf("%s: %d workers; expected %d", when, s.Workers, least)
					}
				}
				for range 20 {
					for range 500 {
						mustSubmit(t, p, job)
					}
					check("under work")
					time.Sleep(time.Second)
					check("after work")
				}
				for range 100 {
					time.Sleep(10 * time.Second)
					check("without work")
				}
				// The workers exist: that many jobs run at once.
				release := occupyWorkers(t, p, least)
				release()
				check("at the end")
			})
		})
	}
}

// An idle pool takes hardly any CPU while it has workers, and stops them.
func TestIdleWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPool(t, pool.Config{Max: 64, Queue: 64, FixedLimit: true})
		for range 64 {
			mustSubmit(t, p, func(context.Context) { time.Sleep(100 * time.Millisecond) })
		}
		time.Sleep(time.Second)
		synctest.Wait()
		before, workers := p.Ticks(), p.Stats().Workers
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if n := p.Ticks() - before; n > 10 {
			t.Errorf("the controller has run %d times in 5 s without work", n)
		}
		if n := p.Stats().Workers; n == 0 || n >= workers/2 {
			t.Errorf("%d workers have become %d in 5 s, expected less than half, and some", workers, n)
		}
		time.Sleep(time.Minute)
		if n := p.Stats().Workers; n != 0 {
			t.Errorf("%d workers are left after a minute", n)
		}
	})
}

// Waiting jobs get the workers that the load needs within 200 ms, and these stop when the load
// ends. Extra workers empty the queue that has built up.
func TestWorkersFollowTheLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const need = 400 // 20,000 jobs of 20 ms a second
		p := startPool(t, pool.Config{Min: 4, Queue: 4096})
		var offered, done, quick atomic.Int64
		load := func(d time.Duration) {
			for range d / time.Millisecond {
				for range need / 20 {
					offered.Add(1)
					begin := time.Now()
					_ = p.TrySubmit(func(context.Context) {
						time.Sleep(20 * time.Millisecond)
						done.Add(1)
						if time.Since(begin) <= 40*time.Millisecond {
							quick.Add(1)
						}
					})
				}
				time.Sleep(time.Millisecond)
			}
		}
		load(200 * time.Millisecond)
		s := p.Stats()
		if s.Workers < need*9/10 || s.Workers > 8*need {
			t.Errorf("after 200 ms: %d workers, limit %d; expected %d to %d", s.Workers, s.Limit, need*9/10, 8*need)
		}
		for _, n := range []*atomic.Int64{&offered, &done, &quick} {
			n.Store(0)
		}
		load(2 * time.Second)
		if all := offered.Load(); done.Load() < all*95/100 || quick.Load() < all*90/100 {
			t.Errorf("after two seconds %d of %d were done, %d within 40 ms; expected nearly all, 90 %%", done.Load(), all, quick.Load())
		}
		if s := p.Stats(); s.Workers > 4*need {
			t.Errorf("after four seconds: %d workers; expected at most %d", s.Workers, 4*need)
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if s := p.Stats(); s.Workers != 4 || s.Idle != 4 {
			t.Errorf("five minutes after the load: workers %d, idle %d; expected Min, 4", s.Workers, s.Idle)
		}
	})
}

// Submits that wait for space get workers, too, if nothing can be queued and all workers block.
func TestWorkersForWaitingSubmits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPool(t, pool.Config{Queue: pool.NoQueue})
		const jobs = 100
		gate := make(chan struct{})
		for range jobs {
			go p.Submit(context.Background(), func(context.Context) { <-gate })
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := p.Stats().Running; n != jobs {
			t.Errorf("%d of %d jobs run after a second", n, jobs)
		}
		close(gate)
	})
}

// A burst on an idle pool gets workers before it becomes an overload.
func TestWorkersGrowAtOnce(t *testing.T) {
	for _, burst := range []int{50, 200, 1000} {
		synctest.Test(t, func(t *testing.T) {
			p := startPool(t, pool.Config{})
			jobs := make([]recordedJob, burst)
			begin := time.Now()
			for i := range jobs {
				jobs[i] = recordedJob{t: t, do: func(context.Context) { time.Sleep(20 * time.Millisecond) }}
				mustSubmitTask(t, p, pool.Task{Job: &jobs[i]})
			}
			for s := p.Stats(); s.Queued+s.Running > 0; s = p.Stats() {
				time.Sleep(time.Millisecond)
			}
			if s := p.Stats(); time.Since(begin) > 500*time.Millisecond || s.Shed != 0 {
				t.Errorf("%d jobs of 20 ms on an idle pool: %d were shed, it took %v and came to %d workers; expected none, half a second at most",
					burst, s.Shed, time.Since(begin), s.Workers)
			}
		})
	}
}

// While goroutines wait for processors, blocked jobs get another worker each 50 ms, and with jobs that
// end the workers become fewer.
func TestWorkersOnBusyProcessors(t *testing.T) {
	setProcessors(t, 2)
	synctest.Test(t, func(t *testing.T) {
		p, err := pool.NewWithRunnable(pool.Config{Max: 100, Queue: 100_000, Target: time.Hour}, func() int { return 20 })
		closeAtEnd(t, p, err)
		gate := make(chan struct{})
		for range 200 {
			mustSubmit(t, p, func(context.Context) { <-gate })
		}
		time.Sleep(20 * time.Millisecond)
		before := p.Stats().Limit
		time.Sleep(time.Second)
		if more := p.Stats().Limit - before; more < 15 || more > 25 {
			t.Errorf("%d workers are %d more after a second in which no job ends; expected 20 more", before, more)
		}
		close(gate)
		for range 4000 {
			mustSubmit(t, p, func(context.Context) { time.Sleep(10 * time.Millisecond) })
		}
		most := p.Stats().Limit
		time.Sleep(time.Second)
		if n := p.Stats().Limit; n >= most {
			t.Errorf("the limit of %d workers is %d after a second; expected fewer", most, n)
		}
	})
}

// If every busy worker needs a processor, the workers become fewer, so that other goroutines run sooner.
func TestFewWorkersForComputingJobs(t *testing.T) {
	setProcessors(t, 2)
	synctest.Test(t, func(t *testing.T) {
		var runnable atomic.Int64
		p, err := pool.NewWithRunnable(pool.Config{Max: 12, Queue: 100_000, Target: time.Hour}, func() int { return int(runnable.Load()) })
		closeAtEnd(t, p, err)
		for range 10_000 {
			mustSubmit(t, p, func(context.Context) { time.Sleep(10 * time.Millisecond) })
		}
		time.Sleep(time.Second)
		if n := p.Stats().Workers; n != 12 || !p.MostJobsWait() {
			t.Fatalf("%d workers for jobs that wait, want 12; MostJobsWait is %v", n, p.MostJobsWait())
		}
		runnable.Store(8)
		time.Sleep(time.Second)
		if n := p.Stats().Workers; n != 4 || p.MostJobsWait() {
			t.Errorf("%d workers for jobs that compute, want 2 for each processor; MostJobsWait is %v", n, p.MostJobsWait())
		}
	})
}

// If most goroutines that wait for processors are not the pool's, jobs get half as many workers as goroutines wait, but
// not more than 64 for each processor.
func TestWorkersBesideOtherGoroutines(t *testing.T) {
	setProcessors(t, 2)
	for runnable, want := range map[int]int{200: 100, 1000: 128} {
		synctest.Test(t, func(t *testing.T) {
			p, err := pool.NewWithRunnable(pool.Config{Queue: 100_000, Target: time.Hour}, func() int { return runnable })
			closeAtEnd(t, p, err)
			for range 20_000 {
				mustSubmit(t, p, func(context.Context) { time.Sleep(10 * time.Millisecond) })
			}
			for range 4 {
				time.Sleep(100 * time.Millisecond)
				if n := p.Stats().Workers; n < want*9/10 || n > want {
					t.Errorf("%d runnable goroutines: %d workers; expected %d", runnable, n, want)
				}
			}
		})
	}
}
