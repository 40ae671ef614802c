package pool_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/pool"
)

// Each field has limits. An error contains the field, the value and what was expected.
func TestConfigBounds(t *testing.T) {
	const µs, h = time.Microsecond, time.Hour
	for _, c := range []struct {
		cfg   pool.Config
		names []string // none for a good one
	}{
		{pool.Config{}, nil},
		{pool.Config{Min: -1}, []string{"Min is -1", "1000000"}},
		{pool.Config{Min: 1_000_001}, []string{"Min is 1000001", "1000000"}},
		{pool.Config{Min: 10_001}, nil}, // more than the default of Max
		{pool.Config{Max: -1}, []string{"Max is -1", "1000000"}},
		{pool.Config{Max: 1}, nil},
		{pool.Config{Max: 1_000_000}, nil},
		{pool.Config{Max: 1_000_001}, []string{"Max is 1000001", "1000000"}},
		{pool.Config{Min: 5, Max: 5}, nil},
		{pool.Config{Min: 5, Max: 4}, []string{"Max is 4", "Min of 5", "5 to 1000000"}},
		{pool.Config{Queue: pool.NoQueue}, nil},
		{pool.Config{Queue: -2}, []string{"Queue is -2", "NoQueue", "16777216"}},
		{pool.Config{Queue: 1}, nil},
		{pool.Config{Queue: 16_777_217}, []string{"Queue is 16777217", "16777216"}},
		{pool.Config{Target: -1}, []string{"Target is -1ns", "100µs"}},
		{pool.Config{Target: 100*µs - 1}, []string{"Target is 99.999µs", "100µs"}},
		{pool.Config{Target: 100 * µs}, nil},
		{pool.Config{Target: h}, nil},
		{pool.Config{Target: h + 1}, []string{"Target is 1h0m0.000000001s", "1h0m0s"}},
		{pool.Config{Interval: -1}, []string{"Interval is -1ns", "5ms"}},
		{pool.Config{Interval: 5*time.Millisecond - 1}, []string{"Interval is 4.999999ms", "5ms"}},
		{pool.Config{Interval: 5 * time.Millisecond}, nil},
		{pool.Config{Target: time.Second, Interval: time.Second}, nil},
		{pool.Config{Target: time.Second, Interval: time.Second - 1}, []string{"Interval is 999.999999ms", "1s"}},
		{pool.Config{Interval: h}, nil},
		{pool.Config{Interval: h + 1}, []string{"Interval is 1h0m0.000000001s", "1h0m0s"}},
		{pool.Config{FixedLimit: true, KeepQueued: true, FIFO: true}, nil},
		{pool.Config{MemoryLimit: -1}, nil},
		{pool.Config{MemoryLimit: 1}, nil},
	} {
		p, err := pool.New(c.cfg)
		if (err != nil) != (c.names != nil) || (p != nil) != (c.names == nil) || err != nil && !errors.Is(err, pool.ErrBadConfig) {
			t.Errorf("New(%+v): %v, %v; expected ErrBadConfig for %q", c.cfg, p, err, c.names)
			continue
		}
		if p != nil {
			closeAndCheck(t, p, context.Background())
			continue
		}
		for _, name := range append(c.names, "expected") {
			if !strings.Contains(err.Error(), name) {
				t.Errorf("New(%+v): %v; expected an error that says %q", c.cfg, err, name)
			}
		}
	}
}

// Exactly Max jobs run and Queue jobs wait.
func TestQueueBoundIsExact(t *testing.T) {
	for _, queue := range []int{pool.NoQueue, 0, 1, 2, 63, 64, 1000, 100_000} {
		for _, plain := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				const workers = 3
				p := startPool(t, plainConfig(workers, queue, plain))
				room := max(queue, 0)
				if queue == 0 {
					room = 1024 // the default
				}
				for round := range 2 {
					release := occupyWorkers(t, p, workers)
					n := 0
					for n <= room && p.TrySubmit(noopJob) == nil {
						n++
					}
					if s := p.Stats(); n != room || s.Queued != n || s.Running != workers {
						t.Errorf("queue %d, plain %v, round %d: %d jobs were accepted to wait, queued %d, running %d; expected %d, %d",
							queue, plain, round, n, s.Queued, s.Running, room, workers)
					}
					for range 100 { // rejections repeat
						if err := p.TrySubmit(noopJob); !errors.Is(err, pool.ErrFull) {
							t.Fatalf("queue %d: got %v; expected ErrFull", queue, err)
						}
					}
					release()
					synctest.Wait()
					if s := p.Stats(); s.Queued+s.Running != 0 {
						t.Fatalf("queue %d: queued %d, running %d", queue, s.Queued, s.Running)
					}
				}
			})
		}
	}
}

// A process above its memory limit has few workers, but some; without a limit the same load has
// many. (It starts with some for each processor.)
func TestMemoryPressure(t *testing.T) {
	setProcessors(t, 2)
	for _, limit := range []int64{1, -1} {
		synctest.Test(t, func(t *testing.T) {
			p := startPool(t, pool.Config{Min: 1, Max: 1000, Queue: 100_000, MemoryLimit: limit, Target: time.Hour})
			for range 100_000 {
				mustSubmit(t, p, func(context.Context) { time.Sleep(20 * time.Millisecond) })
			}
			time.Sleep(1500 * time.Millisecond)
			synctest.Wait()
			s := p.Stats()
			if s.Finished == 0 {
				t.Errorf("MemoryLimit %d: nothing is run at all", limit)
			}
			if limit == 1 && s.Workers > 100 {
				t.Errorf("over the memory limit there are %d workers of 1000; expected few", s.Workers)
			}
			if limit == -1 && s.Workers < 200 {
				t.Errorf("without a memory limit there are %d workers of 1000: the test shows nothing", s.Workers)
			}
			closeAndCheck(t, p, newEndedContext(nil))
		})
	}
}

// At most Max jobs run at once, and that many do if the limit is fixed.
func TestWorkersAreBounded(t *testing.T) {
	for _, c := range []struct {
		cfg  pool.Config
		most int64
		all  bool // with FixedLimit there are as many at any time
	}{
		{pool.Config{Max: 1}, 1, true},
		{pool.Config{Max: 7}, 7, true},
		{pool.Config{Max: 100}, 100, false},
		{pool.Config{Max: 300, FixedLimit: true}, 300, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			c.cfg.Queue, c.cfg.Target = 4096, time.Hour
			p := startPool(t, c.cfg)
			var running, worst atomic.Int64
			const jobs = 1000
			for range jobs {
				err := p.TrySubmit(func(context.Context) {
					n := running.Add(1)
					for w := worst.Load(); n > w && !worst.CompareAndSwap(w, n); w = worst.Load() {
					}
					time.Sleep(20 * time.Millisecond)
					running.Add(-1)
				})
				if err != nil {
					t.Fatal(err)
				}
				if s := p.Stats(); s.Workers > int(c.most) || s.Limit > int(c.most) {
					t.Fatalf("%+v: workers %d, limit %d; expected at most %d", c.cfg, s.Workers, s.Limit, c.most)
				}
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if s := p.Stats(); s.Finished != jobs {
				t.Errorf("%+v: %d of %d have run", c.cfg, s.Finished, jobs)
			}
			if n := worst.Load(); n > c.most || c.all && n < c.most {
				t.Errorf("%+v: %d ran at once; expected %d", c.cfg, n, c.most)
			}
		})
	}
}
