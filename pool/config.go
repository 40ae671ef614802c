package pool

import (
	"fmt"
	"runtime"
	"time"
)

// Config says how a pool is to be. Its zero value is a good pool.
type Config struct {
	// Min and Max bound the number of workers. Min, 0 by default, are there
	// as long as the pool is open. Max is 10,000 by default, at most 1,000,000.
	// With both the same the number is fixed.
	Min, Max int
	// Queue is how many jobs may wait for a worker, at most 16,777,216. The
	// default is 1,024; NoQueue is none: a job is accepted when a worker can
	// take it at once, that is a moment after its last job has returned. Each
	// that waits takes 24 bytes, or 48 with a context and a key. A worker whose
	// jobs are quick takes up to 31 more out of the queue when it takes one.
	Queue int
	// Target is how long jobs may wait for all of Interval before the pool is
	// overloaded, and how long they may at all while it is. The defaults are
	// 5 ms and 100 ms, from 100 µs and from Target on; at most an hour. The
	// method is that of "Fail at Scale" (B. Maurer, ACM Queue 13-8, 2015),
	// after CoDel (K. Nichols and V. Jacobson, ACM Queue 10-5, 2012).
	Target, Interval time.Duration
	// Off are the rules that are switched off: for comparison, or because what
	// waits here must never be shed.
	Off Rules
	// MemoryLimit is how many bytes the process may use: when it comes near,
	// the number of workers is reduced. 0, the default, is what Go's memory
	// limit, the cgroup and the machine allow; a negative number is no limit.
	MemoryLimit int64
	// JobBytes, if it is known, is about how many bytes a job takes while it
	// runs: then there are never more workers than fit in half of MemoryLimit,
	// and Min is at most that.
	JobBytes int64
	// Panicked, if set, is called with each panic of a job, on its worker.
	// A panic is counted and contained in any case.
	Panicked func(*PanicError)
}

// Rules are what a pool does about overload.
type Rules uint

// The rules.
const (
	// Adapting is to follow the work with the number of workers. Without it
	// there may always be Max.
	Adapting Rules = 1 << iota
	// Shedding is to shed jobs that have waited for too long in an overload, or
	// that have to make room for others.
	Shedding
	// NewestFirst is to take the newest jobs first in an overload.
	NewestFirst
	// Fairness is to take jobs of each Key in turn.
	Fairness

	// AllRules is all of them: a pool without is a queue about in order of
	// arrival, before a number of workers up to Max. (About, because the queue
	// is in parts, as many as 2 for each processor if it is large enough.)
	AllRules = Adapting | Shedding | NewestFirst | Fairness
)

// NoQueue is a Config.Queue without room.
const NoQueue = -1

const (
	defaultMax   = 10_000
	maxWorkers   = 1_000_000
	defaultQueue = 1024
	maxQueue     = 1 << 24

	defaultTarget   = 5 * time.Millisecond
	defaultInterval = 100 * time.Millisecond
	minTarget       = 100 * time.Microsecond
	maxInterval     = time.Hour
)

// filled is the Config with its defaults, or an error that wraps ErrBadConfig.
func (c Config) filled() (Config, error) {
	if c.Max == 0 {
		c.Max = max(defaultMax, c.Min)
	}
	switch c.Queue {
	case 0:
		c.Queue = defaultQueue
	case NoQueue:
		c.Queue = 0
	}
	if c.Target == 0 {
		c.Target = defaultTarget
	}
	if c.Interval == 0 {
		c.Interval = max(defaultInterval, c.Target)
	}
	if err := checkSize(c.Min, c.Max); err != nil {
		return c, err
	}
	switch {
	case c.Queue < 0 || c.Queue > maxQueue:
		return c, bad("Queue is %d; expected 0 (the default, %d), NoQueue (%d), or up to %d", c.Queue, defaultQueue, NoQueue, maxQueue)
	case c.Target < minTarget || c.Target > maxInterval:
		return c, bad("Target is %v; expected 0 (the default, %v), or %v to %v", c.Target, defaultTarget, minTarget, maxInterval)
	case c.Interval < c.Target || c.Interval > maxInterval:
		return c, bad("Interval is %v; expected 0 (the default, %v), or %v (Target) to %v", c.Interval, defaultInterval, c.Target, maxInterval)
	case c.Off&^AllRules != 0:
		return c, bad("Off is %#x; expected some of %#x (AllRules)", uint(c.Off), uint(AllRules))
	case c.JobBytes < 0:
		return c, bad("JobBytes is %d; expected 0 (not known) or more", c.JobBytes)
	}
	return c, nil
}

// checkSize checks a number of workers.
func checkSize(least, most int) error {
	switch {
	case least < 0 || least > maxWorkers:
		return bad("Min is %d; expected 0 to %d", least, maxWorkers)
	case most < 1 || most < least || most > maxWorkers:
		return bad("Max is %d with a Min of %d; expected %d to %d", most, least, max(1, least), maxWorkers)
	}
	return nil
}

// bad makes an error that wraps ErrBadConfig.
func bad(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrBadConfig}, args...)...)
}

// shards is how many shards a queue has: enough that those who submit and those who
// take seldom meet, and not so many that each is small.
func (c Config) shards() int {
	n := 1
	for n < 2*runtime.GOMAXPROCS(0) && n < maxShards && c.Queue/(2*n) >= minShard {
		n *= 2
	}
	return n
}

const (
	maxShards = 64
	minShard  = 64
)
