package pool

import (
	"fmt"
	"runtime"
	"time"
)

// Config configures a pool. Its zero value is a good pool.
type Config struct {
	// Min and Max bound the number of workers. Min workers, 0 by default, are there as
	// long as the pool is open. Max is 10,000 by default (or Min, if that is more), at
	// most 1,000,000. If both are the same the number is fixed.
	Min, Max int
	// Queue is how many jobs may wait for a worker: 1,024 by default, at most
	// 16,777,216. NoQueue is none: a job is accepted only when a worker can take it at
	// once, that is a moment after its last job has returned. A waiting job takes 40
	// bytes.
	Queue int
	// When jobs have waited longer than Target for all of Interval, the pool is
	// overloaded; while it is, no more jobs may wait than the workers take within Target,
	// others find the queue full, and those that have waited longer nevertheless are
	// shed. The default of Target is 5 ms or, if that is longer, the time that jobs take
	// on average, up to Interval; that of Interval is 100 ms. Target is at least 100 µs,
	// Interval at least Target, and both at most an hour. The method is that of "Fail at
	// Scale" (B. Maurer, ACM Queue 13-8, 2015), after CoDel (K. Nichols, V. Jacobson, ACM
	// Queue 10-5, 2012).
	Target, Interval time.Duration
	// FixedLimit keeps the limit of workers at Max. By default the limit follows the work.
	FixedLimit bool
	// KeepQueued keeps queued jobs however long they wait. By default an overloaded pool
	// sheds jobs that have waited longer than Target.
	KeepQueued bool
	// FIFO always runs the oldest job of a shard first. By default an overloaded pool runs
	// the newest first, while the oldest has waited longer than Target.
	//
	// A pool with FixedLimit, KeepQueued and FIFO is a plain queue in front of at most Max
	// workers. Its order is approximate: the queue has up to two shards for each processor,
	// and only the jobs of one shard run in order of arrival.
	FIFO bool
	// MemoryLimit is how many bytes the process may use: when its live heap comes near
	// that, the number of workers is reduced. 0, the default, is what Go's memory limit,
	// the cgroup and the machine allow; a negative number is no limit.
	MemoryLimit int64
	// Panicked, if set, is called with each panic of a job, on its worker; with
	// several workers it may be called concurrently. Panics are counted and contained
	// in any case.
	Panicked func(*PanicError)

	fixedTarget bool // it does not follow the jobs
}

// NoQueue is a Config.Queue without room.
const NoQueue = -1

const (
	defaultMax   = 10_000
	maxLimit     = 1_000_000
	defaultQueue = 1024
	maxQueue     = 1 << 24

	defaultTarget   = 5 * time.Millisecond
	defaultInterval = 100 * time.Millisecond
	minTarget       = 100 * time.Microsecond
	maxInterval     = time.Hour

	maxShards   = 64
	minPerShard = 64 // jobs
)

// withDefaults is the Config with its defaults, or an error that wraps ErrBadConfig.
func (c Config) withDefaults() (Config, error) {
	if c.Max == 0 {
		c.Max = max(defaultMax, c.Min)
	}
	switch c.Queue {
	case 0:
		c.Queue = defaultQueue
	case NoQueue:
		c.Queue = 0
	}
	if c.fixedTarget = c.Target != 0; !c.fixedTarget {
		c.Target = defaultTarget
	}
	if c.Interval == 0 {
		c.Interval = max(defaultInterval, c.Target)
	}
	switch {
	case c.Min < 0 || c.Min > maxLimit:
		return c, badConfig("Min is %d; expected 0 to %d", c.Min, maxLimit)
	case c.Max < 1 || c.Max < c.Min || c.Max > maxLimit:
		return c, badConfig("Max is %d with a Min of %d; expected %d to %d", c.Max, c.Min, max(1, c.Min), maxLimit)
	case c.Queue < 0 || c.Queue > maxQueue:
		return c, badConfig("Queue is %d; expected 0 (the default, %d), NoQueue (%d), or up to %d", c.Queue, defaultQueue, NoQueue, maxQueue)
	case c.Target < minTarget || c.Target > maxInterval:
		return c, badConfig("Target is %v; expected 0 (the default, %v), or %v to %v", c.Target, defaultTarget, minTarget, maxInterval)
	case c.Interval < c.Target || c.Interval > maxInterval:
		return c, badConfig("Interval is %v; expected 0 (the default, %v), or %v (Target) to %v", c.Interval, defaultInterval, c.Target, maxInterval)
	}
	return c, nil
}

func badConfig(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrBadConfig}, args...)...)
}

// shards is how many shards a queue has: enough that submitters and workers seldom meet,
// and not so many that each is small.
func (c Config) shards() int {
	n := 1
	for n < 2*runtime.GOMAXPROCS(0) && n < maxShards && c.Queue/(2*n) >= minPerShard {
		n *= 2
	}
	return n
}
