package engine

import (
	"math"
	"testing"
	"testing/synctest"
	"time"
)

// A Stop that closes by force waits as long as connections are being closed, and no longer.
func TestAwaitKilled(t *testing.T) {
	for name, c := range map[string]struct {
		open  []int64 // at the beginning, and after each KillGrace
		done  time.Duration
		stuck int64
		took  time.Duration
	}{
		"at once":              {[]int64{5}, KillGrace / 2, 0, KillGrace / 2},
		"none is closed":       {[]int64{5, 5}, time.Hour, 5, KillGrace},
		"few are closed":       {[]int64{5, 4, 3, 3}, time.Hour, 3, 3 * KillGrace},
		"all, after some time": {[]int64{5, 4, 3, 2}, 7 * KillGrace / 2, 0, 7 * KillGrace / 2},
		"none is left":         {[]int64{1, 0, 0}, time.Hour, 0, 2 * KillGrace},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				done := make(chan struct{})
				end := time.AfterFunc(c.done, func() { close(done) })
				defer end.Stop()
				begun := time.Now()
				stuck := awaitClosedOrStuck(done, func() (n int64) {
					n, c.open = c.open[0], c.open[1:]
					return n
				})
				if took := time.Since(begun); stuck != c.stuck || took != c.took {
					t.Errorf("%d are stuck after %v, want %d after %v", stuck, took, c.stuck, c.took)
				}
			})
		})
	}
}

func TestMayDrain(t *testing.T) {
	for _, c := range []struct {
		rate   int
		passed time.Duration
		want   int
	}{
		{0, 0, math.MaxInt},
		{1, 0, 1}, {1, 500 * time.Millisecond, 1}, {1, time.Second, 2}, {1, 10 * time.Second, 11},
		{150, 0, 2}, {150, 990 * time.Millisecond, 151}, {10_000, 0, 101},
	} {
		if got := MaxDrainedAfter(c.rate, c.passed); got != c.want {
			t.Errorf("at %d a second, after %v: %d connections may be told, want %d", c.rate, c.passed, got, c.want)
		}
	}
}
