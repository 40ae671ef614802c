package engine

import (
	"context"
	"fmt"
	"math"
	"time"
)

// KillGrace is the interval at which Stop, after the end of its ctx, checks whether connections have closed. If no
// connection has closed in an interval, handlers do not return, and Stop gives up.
const KillGrace = time.Second

// AwaitStop waits until done is closed. If ctx ends first, AwaitStop calls closeAll and waits until the number of open
// connections has not fallen for KillGrace. Then it returns an error with the number of connections that closeAll has
// cut off.
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

// stopError returns the error of a Stop whose ctx ended when closedConns connections were open. stuckConns connections
// are still open, because a handler on their loop or worker has not returned.
func stopError(ctx context.Context, closedConns, stuckConns int64) error {
	switch {
	case stuckConns > 0:
		return fmt.Errorf("%d connections were closed before they had finished, and %d are still open because of handlers that have not returned: %w", closedConns-stuckConns, stuckConns, context.Cause(ctx))
	case closedConns == 0:
		return nil
	}
	return fmt.Errorf("%d connections were closed before they had finished: %w", closedConns, context.Cause(ctx))
}

// DrainInterval is the interval at which a draining engine begins to drain further connections.
const DrainInterval = 10 * time.Millisecond

// MaxDrainedAfter returns how many connections may be drained after an elapsed time. perSecond 0 means no limit.
func MaxDrainedAfter(perSecond int, elapsed time.Duration) int {
	if perSecond == 0 {
		return math.MaxInt
	}
	return int(float64(perSecond)*(elapsed+DrainInterval).Seconds()) + 1
}
