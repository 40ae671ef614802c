package pool_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/pool"
)

// Wait and Service are those of the jobs: jobs that take long are all timed.
func TestStatsOfTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, fixed(1, 64))
		const jobs = 50
		for range jobs { // they wait 0, 10, … 490 ms
			if err := p.TrySubmit(func(context.Context) { time.Sleep(10 * time.Millisecond) }); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		s := p.Stats()
		for name, h := range map[string]pool.Histogram{"Wait": s.Wait, "Service": s.Service} {
			var n uint64
			for _, b := range h.Buckets {
				n += b
			}
			if n != h.Count || n == 0 || n > s.Finished {
				t.Errorf("%s counts %d, its buckets have %d, of %d jobs", name, h.Count, n, s.Finished)
			}
		}
		if m := s.Service.Mean(); m != 10*time.Millisecond {
			t.Errorf("the mean service is %v; expected 10 ms", m)
		}
		if q := s.Service.Quantile(0.5); q < 10*time.Millisecond || q > 20*time.Millisecond {
			t.Errorf("the median service is %v; expected 10 to 20 ms", q)
		}
		if m := s.Wait.Mean(); m < 150*time.Millisecond || m > 350*time.Millisecond {
			t.Errorf("the mean wait is %v; expected about 245 ms", m)
		}
	})
}

// The counters that say "now" do, at rest and at work.
func TestStatsNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, fixed(3, 64))
		check := func(workers, idle, running, queued int, accepted, finished uint64) {
			t.Helper()
			synctest.Wait()
			s := p.Stats()
			if s.Workers != workers || s.Idle != idle || s.Running != running || s.Queued != queued || s.Accepted != accepted || s.Finished != finished {
				t.Errorf("workers %d, idle %d, running %d, queued %d, accepted %d, finished %d; expected %d, %d, %d, %d, %d, %d",
					s.Workers, s.Idle, s.Running, s.Queued, s.Accepted, s.Finished, workers, idle, running, queued, accepted, finished)
			}
		}
		check(3, 3, 0, 0, 0, 0)
		release := hold(t, p, 2)
		check(3, 1, 2, 0, 2, 0)
		third := hold(t, p, 1)
		fill(t, p, 10)
		check(3, 0, 3, 10, 13, 0)
		release()
		third()
		check(3, 3, 0, 0, 13, 13)
	})
}
