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
		"sleep": sleepFor(20 * time.Millisecond),
	} {
		t.Run(name, func(t *testing.T) {
			const least = 8
			inBubble(t, pool.Config{Min: least, Max: 64, Queue: 4096}, func(t *testing.T, p *pool.Pool) {
				check := func(when string) {
					t.Helper()
					synctest.Wait()
					if s := p.Stats(); s.Workers < least {
						t.Fatalf("%s: %d workers; expected %d", when, s.Workers, least)
					}
				}
				for range 20 {
					mustSubmit(t, p, 500, job)
					check("under work")
					time.Sleep(time.Second)
					check("after work")
				}
				for range 100 {
					time.Sleep(10 * time.Second)
					check("without work")
				}
				occupyWorkers(t, p, least) // they exist: that many jobs run at once
			})
		})
	}
}

// An idle pool takes hardly any CPU while it has workers, and stops them.
func TestIdleWorkers(t *testing.T) {
	inBubble(t, pool.Config{Max: 64, Queue: 64, FixedLimit: true}, func(t *testing.T, p *pool.Pool) {
		mustSubmit(t, p, 64, sleepFor(100*time.Millisecond))
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
	inBubble(t, pool.Config{Min: 4, Queue: 4096}, func(t *testing.T, p *pool.Pool) {
		const need = 400 // 20,000 jobs of 20 ms a second
		load := func(d time.Duration) (offered int, done, quick *atomic.Int64) {
			done, quick = new(atomic.Int64), new(atomic.Int64)
			for range d / time.Millisecond {
				for range need / 20 {
					offered++
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
			return offered, done, quick
		}
		load(200 * time.Millisecond)
		s := p.Stats()
		if s.Workers < need*9/10 || s.Workers > 8*need {
			t.Errorf("after 200 ms: %d workers, limit %d; expected %d to %d", s.Workers, s.Limit, need*9/10, 8*need)
		}
		all, done, quick := load(2 * time.Second)
		if int(done.Load()) < all*95/100 || int(quick.Load()) < all*90/100 {
			t.Errorf("after two seconds %d of %d were done, %d within 40 ms; expected nearly all, 90 %%", done.Load(), all, quick.Load())
		}
		if s := p.Stats(); s.Workers > 4*need {
			t.Errorf("after two seconds: %d workers; expected at most %d", s.Workers, 4*need)
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
	inBubble(t, pool.Config{Queue: pool.NoQueue}, func(t *testing.T, p *pool.Pool) {
		const jobs = 100
		gate := make(chan struct{})
		defer close(gate)
		for range jobs {
			go p.Submit(context.Background(), func(context.Context) { <-gate })
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := p.Stats().Running; n != jobs {
			t.Errorf("%d of %d jobs run after a second", n, jobs)
		}
	})
}

// A burst on an idle pool gets workers before it becomes an overload.
func TestWorkersGrowAtOnce(t *testing.T) {
	for _, burst := range []int{50, 1000} {
		inBubble(t, pool.Config{}, func(t *testing.T, p *pool.Pool) {
			begin := time.Now()
			mustSubmit(t, p, burst, sleepFor(20*time.Millisecond))
			waitForIdle(p)
			if s := p.Stats(); time.Since(begin) > 500*time.Millisecond || s.Shed != 0 {
				t.Errorf("%d jobs of 20 ms on an idle pool: %d were shed, it took %v and came to %d workers; expected none, half a second at most",
					burst, s.Shed, time.Since(begin), s.Workers)
			}
		})
	}
}

func waitForIdle(p *pool.Pool) {
	for s := p.Stats(); s.Queued+s.Running > 0; s = p.Stats() {
		time.Sleep(time.Millisecond)
	}
}

// inBusyBubble runs test with a pool on two processors in a synctest bubble. runnable goroutines wait for a processor.
func inBusyBubble(t *testing.T, most int, runnable *atomic.Int64, test func(t *testing.T, p *pool.Pool)) {
	t.Helper()
	setProcessors(t, 2)
	synctest.Test(t, func(t *testing.T) {
		cfg := pool.Config{Max: most, Queue: 100_000, Target: time.Hour}
		test(t, startPoolBeside(t, cfg, func() int { return int(runnable.Load()) }))
	})
}

// While goroutines wait for processors, blocked jobs get another worker each 50 ms, and with jobs that
// end the workers become fewer.
func TestWorkersOnBusyProcessors(t *testing.T) {
	var runnable atomic.Int64
	runnable.Store(20)
	inBusyBubble(t, 100, &runnable, func(t *testing.T, p *pool.Pool) {
		gate := make(chan struct{})
		mustSubmit(t, p, 200, func(context.Context) { <-gate })
		time.Sleep(20 * time.Millisecond)
		before := p.Stats().Limit
		time.Sleep(time.Second)
		if more := p.Stats().Limit - before; more < 15 || more > 25 {
			t.Errorf("%d workers are %d more after a second in which no job ends; expected 20 more", before, more)
		}
		close(gate)
		mustSubmit(t, p, 4000, sleepFor(10*time.Millisecond))
		most := p.Stats().Limit
		time.Sleep(time.Second)
		if n := p.Stats().Limit; n >= most {
			t.Errorf("the limit of %d workers is %d after a second; expected fewer", most, n)
		}
	})
}

// If every busy worker needs a processor, the workers become fewer, so that other goroutines run sooner.
func TestFewWorkersForComputingJobs(t *testing.T) {
	var runnable atomic.Int64
	inBusyBubble(t, 12, &runnable, func(t *testing.T, p *pool.Pool) {
		mustSubmit(t, p, 10_000, sleepFor(10*time.Millisecond))
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
	for others, want := range map[int64]int{200: 100, 1000: 128} {
		var runnable atomic.Int64
		runnable.Store(others)
		inBusyBubble(t, 0, &runnable, func(t *testing.T, p *pool.Pool) {
			mustSubmit(t, p, 20_000, sleepFor(10*time.Millisecond))
			for range 4 {
				time.Sleep(100 * time.Millisecond)
				if n := p.Stats().Workers; n < want*9/10 || n > want {
					t.Errorf("%d runnable goroutines: %d workers; expected %d", others, n, want)
				}
			}
		})
	}
}
