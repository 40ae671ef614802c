package pool

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
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
