package engine

import (
	"context"
	"fmt"
	"math"
	"time"
)

// KillGrace is how long Stop waits for connections to close after its ctx has ended. It waits again
// if some have closed in that time, so that it ends only if handlers do not return.
const KillGrace = time.Second

// AwaitStop waits until done. If ctx ends before, it calls closeAll, waits until the number of open
// connections has not fallen for KillGrace, and returns an error with the number of connections
// that were cut off.
func AwaitStop(ctx context.Context, done <-chan struct{}, countOpen func() int64, closeAll func()) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	closed := countOpen()
	closeAll()
	return stopError(ctx, closed, awaitClosedOrStuck(done, countOpen))
}

func awaitClosedOrStuck(done <-chan struct{}, countOpen func() int64) (stuck int64) {
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

// stopError returns the error of a Stop whose ctx ended with closedConns open connections. stuckConns of them
// are still open, because their handler, or another one on the same loop or worker, has not
// returned.
func stopError(ctx context.Context, closedConns, stuckConns int64) error {
	switch {
	case stuckConns > 0:
		return fmt.Errorf("%d connections were closed before they had finished, and %d are still open because of handlers that have not returned: %w", closedConns-stuckConns, stuckConns, context.Cause(ctx))
	case closedConns == 0:
		return nil
	}
	return fmt.Errorf("%d connections were closed before they had finished: %w", closedConns, context.Cause(ctx))
}

// DrainInterval is how often a draining engine drains further connections.
const DrainInterval = 10 * time.Millisecond

// MaxDrainedAfter returns how many connections may have been told to drain after an elapsed time;
// perSecond 0 means no limit.
func MaxDrainedAfter(perSecond int, elapsed time.Duration) int {
	if perSecond == 0 {
		return math.MaxInt
	}
	return int(float64(perSecond)*(elapsed+DrainInterval).Seconds()) + 1
}
