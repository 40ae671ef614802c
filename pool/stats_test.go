package pool_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/pool"
)

func TestStatsOfTimes(t *testing.T) {
	inBubble(t, fixedConfig(1, 64), func(t *testing.T, p *pool.Pool) {
		const jobs = 50
		mustSubmit(t, p, jobs, sleepFor(10*time.Millisecond)) // they wait 0, 10, … 490 ms
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
		if m, q := s.Service.Mean(), s.Service.Quantile(0.5); m != 10*time.Millisecond || q < m || q > 2*m {
			t.Errorf("the mean service is %v, the median %v; expected 10 ms, 10 to 20 ms", m, q)
		}
		if m := s.Wait.Mean(); m < 150*time.Millisecond || m > 350*time.Millisecond {
			t.Errorf("the mean wait is %v; expected about 245 ms", m)
		}
	})
}
