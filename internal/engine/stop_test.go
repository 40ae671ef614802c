package engine

import (
	"testing"
	"testing/synctest"
	"time"
)

// A Stop that kills waits as long as connections are being closed, and no longer.
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
				stuck := AwaitKilled(done, func() (n int64) {
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
