package pool

import (
	"cmp"
	"fmt"
	"time"
)

// Config configures a pool. The zero value is a good default.
type Config struct {
	// Min and Max limit the number of workers. The pool always keeps Min workers, 0 by default. The default of Max is
	// 10,000, or Min if Min is more; the maximum is 1,000,000. If Min equals Max, the number of workers is fixed.
	Min, Max int
	// Queue is the maximum number of waiting jobs. The default is 1,024, the maximum 16,777,216. A waiting job takes 40
	// bytes.
	//
	// With NoQueue, the pool accepts a job only if a worker is available immediately. A worker becomes available a
	// moment after its last job has returned.
	Queue int
	// Target and Interval define an overload, which begins when jobs have waited longer than Target for all of
	// Interval. During the overload, the queue is limited to the jobs that the workers can start within Target. The
	// pool rejects further jobs as if the queue were full, and sheds jobs that wait longer than Target.
	//
	// The default of Target is 5 ms or, if longer, the mean duration of jobs, up to Interval. The default of Interval
	// is 100 ms. Target is at least 100 µs, Interval at least Target, and both at most an hour. The method is that of
	// "Fail at Scale" (B. Maurer, ACM Queue 13-8, 2015).
	Target, Interval time.Duration
	// FixedLimit fixes the limit of workers at Max. By default, the pool adapts the limit to the load.
	FixedLimit bool
	// KeepQueued disables load shedding. By default, an overloaded pool accepts fewer jobs, and drops (sheds) jobs that
	// have waited longer than Target.
	KeepQueued bool
	// FIFO makes the pool always run the oldest queued job first. By default, an overloaded pool runs the newest job
	// first if the oldest job has waited longer than Target.
	//
	// The queue is split into up to 64 shards, depending on Queue and the number of processors. Jobs are ordered only
	// within a shard. With FixedLimit, KeepQueued and FIFO, the pool is a plain queue in front of at most Max workers.
	FIFO bool
	// MemoryLimit is the memory in bytes that the process may use. If the process approaches this limit, the pool
	// reduces the number of workers. If MemoryLimit is 0, the limit is the smallest of GOMEMLIMIT, the cgroup's limit
	// and the machine's memory. If MemoryLimit is negative, there is no limit.
	MemoryLimit int64
	// Panicked, if set, is called after each panic of a job or of [Dropper].Dropped. It is called on the goroutine that
	// has panicked. Calls may be concurrent. A panic does not affect other jobs.
	Panicked func(*PanicError)

	fixedTarget bool // the caller has set Target, so the pool does not adapt it
}

// NoQueue is the value of Config.Queue for a pool without a queue.
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
)

func (c Config) withDefaults() (Config, error) {
	c.fixedTarget = c.Target != 0
	c.Max = cmp.Or(c.Max, max(defaultMax, c.Min))
	c.Target = cmp.Or(c.Target, defaultTarget)
	c.Interval = cmp.Or(c.Interval, max(defaultInterval, c.Target))
	if c.Queue = cmp.Or(c.Queue, defaultQueue); c.Queue == NoQueue {
		c.Queue = 0
	}
	switch {
	case c.Min < 0 || c.Min > maxLimit:
		return c, fmt.Errorf("%w: Min is %d; expected 0 to %d", ErrBadConfig, c.Min, maxLimit)
	case c.Max < 1 || c.Max < c.Min || c.Max > maxLimit:
		return c, fmt.Errorf("%w: Max is %d with a Min of %d; expected %d to %d", ErrBadConfig, c.Max, c.Min, max(1, c.Min), maxLimit)
	case c.Queue < 0 || c.Queue > maxQueue:
		return c, fmt.Errorf("%w: Queue is %d; expected 0 (the default, %d), NoQueue (%d), or up to %d", ErrBadConfig, c.Queue, defaultQueue, NoQueue, maxQueue)
	case c.Target < minTarget || c.Target > maxInterval:
		return c, fmt.Errorf("%w: Target is %v; expected 0 (the default, %v), or %v to %v", ErrBadConfig, c.Target, defaultTarget, minTarget, maxInterval)
	case c.Interval < c.Target || c.Interval > maxInterval:
		return c, fmt.Errorf("%w: Interval is %v; expected 0 (the default, %v), or %v (Target) to %v", ErrBadConfig, c.Interval, defaultInterval, c.Target, maxInterval)
	}
	return c, nil
}
