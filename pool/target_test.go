package pool

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// The default target follows the duration of jobs, from 5 ms to Interval; a configured one is
// fixed.
func TestTargetFollows(t *testing.T) {
	for _, c := range []struct{ set, service, want time.Duration }{
		{0, time.Millisecond, 5 * time.Millisecond},
		{0, 30 * time.Millisecond, 30 * time.Millisecond},
		{0, time.Second, 100 * time.Millisecond},
		{5 * time.Millisecond, 30 * time.Millisecond, 5 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			p, err := NewWithRunnable(Config{Max: 4, Target: c.set}, func() int { return 0 })
			testkit.RequireNoError(t, err)
			for range 100 {
				testkit.RequireNoError(t, p.TrySubmit(func(context.Context) { time.Sleep(c.service) }))
			}
			time.Sleep(20 * c.service)
			synctest.Wait()
			if got := time.Duration(p.overload.target.Load()); got != c.want {
				t.Errorf("Target %v, jobs of %v: %v, want %v", c.set, c.service, got, c.want)
			}
			_, err = p.Close(t.Context())
			testkit.ExpectNoError(t, err)
		})
	}
}

// After goroutines have waited for processors, the number of workers grows slowly for a while.
func TestSlowGrowthAfterCrowding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runnable atomic.Int64
		p, err := newPool(Config{Queue: 100_000, Target: time.Hour}, func() int { return int(runnable.Load()) })
		testkit.RequireNoError(t, err)
		gate := make(chan struct{})
		for range 50_000 {
			testkit.RequireNoError(t, p.TrySubmit(func(context.Context) { <-gate }))
		}
		for p.workerCount() < 400 {
			time.Sleep(time.Millisecond)
		}
		runnable.Store(crowdedPerProc*p.procs + 1)
		time.Sleep(2 * time.Millisecond)
		runnable.Store(0)
		before := p.workerCount()
		time.Sleep(10 * time.Millisecond)
		if n := p.workerCount(); n <= before || n > 2*before {
			t.Errorf("%d workers became %d in 10 ms; expected more, but less than twice as many", before, n)
		}
		time.Sleep(time.Duration(slowGrowthFor))
		if n := p.workerCount(); n < 8*before {
			t.Errorf("%d workers became %d in 110 ms; expected at least eight times as many", before, n)
		}
		close(gate)
		_, _ = p.Close(context.Background())
	})
}
