package engine

import (
	"context"
	"fmt"
	"math"
	"time"
)

// This file is what models have in common of Engine.Stop.

// KillGrace is how long Stop waits, when its ctx has ended, for connections to
// be closed, and again as long as some have been closed in that time: it takes
// longer only if a handler does not return.
const KillGrace = time.Second

// AwaitStop waits until done. When ctx ends before, it has kill close what is open, waits
// until the number of those has not gone down for KillGrace, and returns an error that
// says how many were cut off.
func AwaitStop(ctx context.Context, done <-chan struct{}, open func() int64, kill func()) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	cut := open()
	kill()
	return cutOff(ctx, cut, awaitKilled(done, open))
}

// awaitKilled says how many are left in the end.
func awaitKilled(done <-chan struct{}, open func() int64) (stuck int64) {
	tick := time.NewTicker(KillGrace)
	defer tick.Stop()
	for left := open(); ; left = stuck {
		select {
		case <-done:
			return 0
		case <-tick.C:
		}
		if stuck = open(); stuck >= left {
			return stuck
		}
	}
}

// cutOff is the error of a Stop whose ctx ended with n connections open, of which some
// are stuck: behind a handler that has not returned, their own or, on its loop or in the
// queue for its worker, another's.
func cutOff(ctx context.Context, n, stuck int64) error {
	switch {
	case stuck > 0:
		return fmt.Errorf("%d connections were closed before they had finished, and %d are still open because of handlers that have not returned: %w", n-stuck, stuck, context.Cause(ctx))
	case n == 0:
		return nil
	}
	return fmt.Errorf("%d connections were closed before they had finished: %w", n, context.Cause(ctx))
}

// DrainEvery is how often a draining engine tells some more connections.
const DrainEvery = 10 * time.Millisecond

// MayDrain is how many connections may have been told to drain so long after the start,
// at a rate a second; 0 is for no bound.
func MayDrain(rate int, passed time.Duration) int {
	if rate == 0 {
		return math.MaxInt
	}
	return int(float64(rate)*(passed+DrainEvery).Seconds()) + 1
}
