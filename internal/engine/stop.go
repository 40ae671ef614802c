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
func AwaitStop(ctx context.Context, done <-chan struct{}, countOpen func() int64, closeAll func()) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	closed := countOpen()
	closeAll()
	return stopError(ctx, closed, awaitClosed(done, countOpen))
}

// awaitClosed says how many are left in the end.
func awaitClosed(done <-chan struct{}, countOpen func() int64) (stuck int64) {
	tick := time.NewTicker(KillGrace)
	defer tick.Stop()
	for left := countOpen(); ; left = stuck {
		select {
		case <-done:
			return 0
		case <-tick.C:
		}
		if stuck = countOpen(); stuck >= left {
			return stuck
		}
	}
}

// stopError is the error of a Stop whose ctx ended with n connections open, of which some
// are stuck: behind a handler that has not returned, their own or, on its loop or in the
// queue for its worker, another's.
func stopError(ctx context.Context, closed, stuck int64) error {
	switch {
	case stuck > 0:
		return fmt.Errorf("%d connections were closed before they had finished, and %d are still open because of handlers that have not returned: %w", closed-stuck, stuck, context.Cause(ctx))
	case closed == 0:
		return nil
	}
	return fmt.Errorf("%d connections were closed before they had finished: %w", closed, context.Cause(ctx))
}

// DrainInterval is how often a draining engine tells some more connections.
const DrainInterval = 10 * time.Millisecond

// DrainAllowance is how many connections may have been told to drain so long after the start,
// at a rate a second; 0 is for no bound.
func DrainAllowance(perSecond int, elapsed time.Duration) int {
	if perSecond == 0 {
		return math.MaxInt
	}
	return int(float64(perSecond)*(elapsed+DrainInterval).Seconds()) + 1
}
