package pool_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/pool"
)

// Wait and Service measure the jobs' times.
func TestStatsOfTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPool(t, fixedConfig(1, 64))
		const jobs = 50
		for range jobs { // they wait 0, 10, … 490 ms
			mustSubmit(t, p, func(context.Context) { time.Sleep(10 * time.Millisecond) })
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		s := p.Stats()
		for name, h := range map[string]pool.Histogram{"Wait": s.Wait, "Service": s.Service} {
			var n uint64
			for _, b := range h.Buckets {
				n += b
			}
			if n != h.Count || n != jobs {
				t.Errorf("%s counts %d, its buckets have %d; expected %d", name, h.Count, n, jobs)
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
