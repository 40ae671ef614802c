package offer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// jobContext is a job's context: it ends at a time, and has a timer only if
// somebody waits for that. It is used for one job after the other; once somebody
// has waited, no more, so that who was told of its end sees the error too.
type jobContext struct {
	run *run
	at  atomic.Int64 // ns after the start of the run

	mu     sync.Mutex
	timer  *time.Timer
	done   chan struct{}
	waited atomic.Bool
}

func (c *jobContext) left() time.Duration { return time.Duration(c.at.Load() - c.run.now()) }

func (c *jobContext) Deadline() (time.Time, bool) {
	return c.run.start.Add(time.Duration(c.at.Load())), true
}

func (c *jobContext) Err() error {
	if c.left() > 0 {
		return nil
	}
	return context.DeadlineExceeded
}

func (c *jobContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.waited.Store(true)
		done := make(chan struct{})
		c.done, c.timer = done, time.AfterFunc(c.left(), func() { close(done) })
	}
	return c.done
}

// AfterFunc is what package context looks for, to do without a goroutine.
func (c *jobContext) AfterFunc(f func()) (stop func() bool) {
	c.waited.Store(true)
	return time.AfterFunc(c.left(), f).Stop
}

func (c *jobContext) Value(any) any { return nil }

// end stops the timer.
func (c *jobContext) end() {
	if !c.waited.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
	}
}
