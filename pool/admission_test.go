package pool

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// While jobs are rejected, the limit is what the busy workers take within three quarters of the
// target; once there is slack it is the full capacity.
func TestAdmission(t *testing.T) {
	const capacity = 1000
	begin := func() (*overload, *queueAdmission, func(refused bool, queued int)) {
		o := &overload{interval: int64(100 * time.Millisecond), shedding: true}
		o.target.Store(int64(20 * time.Millisecond))
		o.until.Store(int64(50 * time.Millisecond))
		a := &queueAdmission{limit: capacity}
		now := int64(0)
		return o, a, func(refused bool, queued int) {
			now += adjustPeriod
			a.updateQueueLimit(o, now, totals{busy: 40, queued: queued}, refused, capacity, int64(10*time.Millisecond))
		}
	}
	o, a, step := begin()
	for i := range 100 {
		step(true, 50)
		if want := 60; a.limit != want { // 40 workers, 100 jobs a second each, 15 ms
			t.Fatalf("after %d periods with refusals there is room for %d, want %d", i+1, a.limit, want)
		}
	}
	for range 10 {
		step(false, 50)
	}
	if a.limit != capacity || o.isActive(int64(1110*time.Millisecond)) {
		t.Errorf("nothing was refused for an interval: room for %d, want %d, and no overload", a.limit, capacity)
	}

	// Bursts that the workers finish quickly: one period in five rejects jobs.
	_, a, step = begin()
	for i := 0; a.limit < capacity || i == 0; i++ {
		if i == 20 {
			t.Fatalf("after %d periods with bursts there is room for %d, want %d", i, a.limit, capacity)
		}
		step(i%5 == 0, 0)
	}

	// An unknown duration, or a pool that may not shed, has no limit.
	o, a, _ = begin()
	a.updateQueueLimit(o, adjustPeriod, totals{busy: 40, queued: 50}, true, capacity, 0)
	o.shedding = false
	a.updateQueueLimit(o, 2*adjustPeriod, totals{busy: 40, queued: 50}, true, capacity, int64(10*time.Millisecond))
	if a.limit != capacity {
		t.Errorf("room for %d, want %d", a.limit, capacity)
	}
}

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
			p, err := NewWithRunnable(Config{Max: 4, Target: c.set}, 0)
			if err != nil {
				t.Fatal(err)
			}
			for range 100 {
				if err := p.TrySubmit(func(context.Context) { time.Sleep(c.service) }); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(20 * c.service)
			synctest.Wait()
			if got := time.Duration(p.overload.target.Load()); got != c.want {
				t.Errorf("Target %v, jobs of %v: %v, want %v", c.set, c.service, got, c.want)
			}
			if _, err := p.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}
