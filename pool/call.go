package pool

import (
	"context"
	"sync/atomic"
)

// Call has f run by a worker and waits for its result. Like Submit it waits for
// room until ctx ends. The error is f's own, a *PanicError if f has panicked, or
// says why f did not run: ErrClosed, ErrExpired or ErrShed. When ctx ends while f
// runs, Call does not wait for it and returns context.Cause(ctx). ctx must not be
// nil.
func Call[T any](ctx context.Context, p *Pool, f func(ctx context.Context) (T, error)) (T, error) {
	c := &call[T]{f: f, done: make(chan struct{})}
	if err := p.SubmitTask(Task{Job: c, Ctx: ctx}); err != nil {
		return c.result, err
	}
	select {
	case <-c.done:
		return c.result, c.err
	case <-ctx.Done():
	}
	if c.state.CompareAndSwap(pending, given) {
		return c.none(), &expired{context.Cause(ctx)}
	}
	select {
	case <-c.done: // both: the result is there
		return c.result, c.err
	default:
		return c.none(), context.Cause(ctx)
	}
}

// The states of a call: it has not begun, it has, or it must not any more.
const (
	pending = iota
	begun
	given
)

// call is a job with a result. It belongs to the worker until done is closed.
type call[T any] struct {
	f      func(ctx context.Context) (T, error)
	state  atomic.Int32
	result T
	err    error
	done   chan struct{}
}

func (*call[T]) none() (zero T) { return zero }

func (c *call[T]) Run(ctx context.Context) {
	if !c.state.CompareAndSwap(pending, begun) {
		return
	}
	defer close(c.done)
	returned := false
	defer func() {
		if !returned {
			c.err = caught(recover())
			panic(c.err) // the worker counts it
		}
	}()
	c.result, c.err = c.f(ctx)
	returned = true
}

// Dropped implements Dropper.
func (c *call[T]) Dropped(why error) {
	c.err = why
	close(c.done)
}
