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
		cfg  pool.Config
		want string // empty for a good one
	}{
		{pool.Config{}, ""},
		{pool.Config{Min: -1}, "Min is -1; expected 0 to 1000000"},
		{pool.Config{Min: 1_000_001}, "Min is 1000001; expected 0 to 1000000"},
		{pool.Config{Min: 10_001}, ""}, // more than the default of Max
		{pool.Config{Max: -1}, "Max is -1 with a Min of 0; expected 1 to 1000000"},
		{pool.Config{Max: 1_000_000}, ""},
		{pool.Config{Max: 1_000_001}, "Max is 1000001"},
		{pool.Config{Min: 5, Max: 5}, ""},
		{pool.Config{Min: 5, Max: 4}, "Max is 4 with a Min of 5; expected 5 to 1000000"},
		{pool.Config{Queue: pool.NoQueue}, ""},
		{pool.Config{Queue: -2}, "Queue is -2; expected 0 (the default, 1024), NoQueue (-1), or up to 16777216"},
		{pool.Config{Queue: 16_777_217}, "Queue is 16777217"},
		{pool.Config{Target: 100*µs - 1}, "Target is 99.999µs; expected 0 (the default, 5ms), or 100µs to 1h0m0s"},
		{pool.Config{Target: 100 * µs}, ""},
		{pool.Config{Target: h}, ""},
		{pool.Config{Target: h + 1}, "Target is 1h0m0.000000001s"},
		{pool.Config{Interval: 5*time.Millisecond - 1}, "Interval is 4.999999ms; expected 0 (the default, 100ms), or 5ms (Target) to 1h0m0s"},
		{pool.Config{Target: time.Second, Interval: time.Second}, ""},
		{pool.Config{Target: time.Second, Interval: time.Second - 1}, "Interval is 999.999999ms"},
		{pool.Config{Interval: h}, ""},
		{pool.Config{Interval: h + 1}, "Interval is 1h0m0.000000001s"},
	} {
		p, err := pool.New(c.cfg)
		if p != nil {
			closeAndCheck(t, p, context.Background())
		}
		if (p != nil) != (c.want == "") || p != nil && err != nil {
			t.Errorf("New(%+v): %v, %v; expected an error: %q", c.cfg, p, err, c.want)
		}
		if c.want != "" && (!errors.Is(err, pool.ErrBadConfig) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("New(%+v): %v; expected ErrBadConfig: %s", c.cfg, err, c.want)
		}
	}
}

// Exactly Max jobs run and Queue jobs wait.
func TestQueueBoundIsExact(t *testing.T) {
	for queue, room := range map[int]int{pool.NoQueue: 0, 0: 1024, 1: 1, 63: 63, 64: 64, 100_000: 100_000} {
		for _, plain := range []bool{false, true} {
			const workers = 3
			inBubble(t, plainConfig(workers, queue, plain), func(t *testing.T, p *pool.Pool) {
				for range 2 {
					release := occupyWorkers(t, p, workers)
					n := 0
					for n <= room && p.TrySubmit(noopJob) == nil {
						n++
					}
					if s := p.Stats(); n != room || s.Queued != n || s.Running != workers {
						t.Errorf("queue %d, plain %v: %d jobs were accepted to wait, queued %d, running %d; expected %d, %d",
							queue, plain, n, s.Queued, s.Running, room, workers)
					}
					for range 100 { // rejections repeat
						if err := p.TrySubmit(noopJob); !errors.Is(err, pool.ErrFull) {
							t.Fatalf("queue %d: got %v; expected ErrFull", queue, err)
						}
					}
					release()
					synctest.Wait()
				}
			})
		}
	}
}

// A process above its memory limit has few workers, but some; without a limit the same load has
// many. (It starts with some for each processor.)
func TestMemoryPressure(t *testing.T) {
	setProcessors(t, 2)
	for limit, want := range map[int64][2]int{1: {1, 100}, -1: {200, 1000}} {
		cfg := pool.Config{Min: 1, Max: 1000, Queue: 100_000, MemoryLimit: limit, Target: time.Hour}
		inBubble(t, cfg, func(t *testing.T, p *pool.Pool) {
			mustSubmit(t, p, 100_000, sleepFor(20*time.Millisecond))
			time.Sleep(1500 * time.Millisecond)
			synctest.Wait()
			if s := p.Stats(); s.Finished == 0 || s.Workers < want[0] || s.Workers > want[1] {
				t.Errorf("MemoryLimit %d: finished %d, workers %d; expected some, and %v", limit, s.Finished, s.Workers, want)
			}
			closeAndCheck(t, p, newEndedContext(nil))
		})
	}
}

// At most Max jobs run at once, and that many do if the limit is fixed.
func TestWorkersAreBounded(t *testing.T) {
	for _, c := range []struct {
		cfg  pool.Config
		most int
		all  bool // with FixedLimit there are as many at any time
	}{
		{pool.Config{Max: 1}, 1, true},
		{pool.Config{Max: 100}, 100, false},
		{pool.Config{Max: 300, FixedLimit: true}, 300, true},
	} {
		c.cfg.Queue, c.cfg.Target = 4096, time.Hour
		inBubble(t, c.cfg, func(t *testing.T, p *pool.Pool) {
			var running, worst atomic.Int64
			const jobs = 1000
			for range jobs {
				mustSubmit(t, p, 1, func(context.Context) {
					n := running.Add(1)
					for w := worst.Load(); n > w && !worst.CompareAndSwap(w, n); w = worst.Load() {
					}
					time.Sleep(20 * time.Millisecond)
					running.Add(-1)
				})
				if s := p.Stats(); s.Workers > c.most || s.Limit > c.most {
					t.Fatalf("%+v: workers %d, limit %d; expected at most %d", c.cfg, s.Workers, s.Limit, c.most)
				}
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if s := p.Stats(); s.Finished != jobs {
				t.Errorf("%+v: %d of %d have run", c.cfg, s.Finished, jobs)
			}
			if n := int(worst.Load()); n > c.most || c.all && n < c.most {
				t.Errorf("%+v: %d ran at once; expected %d", c.cfg, n, c.most)
			}
		})
	}
}
