package pool

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
)

// Job is what the pool runs. One that is also a [Dropper] learns when it will not run.
type Job interface {
	// Run is called at most once, on a worker. ctx ends with the context that the job
	// was submitted with, when [Pool.Close] stops waiting, and with the job: it must
	// not be used after Run has returned.
	Run(ctx context.Context)
}

// Func is a function as a Job.
type Func func(ctx context.Context)

// Run calls the function.
func (f Func) Run(ctx context.Context) { f(ctx) }

// job is f as a Job; a nil f is no job.
func (f Func) job() Job {
	if f == nil {
		return nil
	}
	return f
}

// Dropper is a Job that is notified when it will not run although it was accepted.
type Dropper interface {
	Job
	// Dropped is called once, instead of Run, with an error that is [ErrExpired],
	// [ErrShed] or [ErrClosed]. It is called on a goroutine of the pool and must not
	// block. A panic in it is contained.
	Dropped(why error)
}

// Task is a job with its context.
type Task struct {
	// Job is required: a task without one is a mistake that panics.
	Job Job
	// Ctx is the job's context; nil is one that ends when Close stops waiting.
	Ctx context.Context
}

// The errors of this package, to be compared with errors.Is.
var (
	// ErrFull says that the job was refused because the queue was full.
	ErrFull = errors.New("pool: full")
	// ErrClosed says that the pool was closed before the job was accepted or ran.
	ErrClosed = errors.New("pool: closed")
	// ErrExpired says that the job's context ended before it ran. The error is also
	// what context.Cause says of that context.
	ErrExpired = errors.New("pool: the job's context ended before it ran")
	// ErrShed says that the job was shed: it had waited too long while the pool was
	// overloaded.
	ErrShed = errors.New("pool: shed, because of overload")
	// ErrBadConfig is wrapped by errors about a Config or sizes that make no sense.
	ErrBadConfig = errors.New("pool: bad configuration")
	// ErrGoexit is the value of the PanicError of a job that called runtime.Goexit.
	ErrGoexit = errors.New("pool: the job has called runtime.Goexit")
)

// expiredError is ErrExpired with what ended the context.
type expiredError struct{ cause error }

func (e *expiredError) Error() string   { return fmt.Sprintf("%v: %v", ErrExpired, e.cause) }
func (e *expiredError) Unwrap() []error { return []error{ErrExpired, e.cause} }

// PanicError is a panic of a job, as Call returns it and Config.Panicked receives it.
type PanicError struct {
	// Value is what the job panicked with.
	Value any
	// Stack is the stack of its goroutine, as debug.Stack formats it.
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("pool: a job panicked: %v", e.Value) }

// Unwrap is the value, if that is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// newPanicError is the error for a recovered value; nil stands for runtime.Goexit.
func newPanicError(v any) *PanicError {
	if p, ok := v.(*PanicError); ok {
		return p // made by Call already
	}
	if v == nil {
		v = ErrGoexit
	}
	return &PanicError{Value: v, Stack: debug.Stack()}
}

// Call has f run by a worker and waits for its result. Like Submit it waits for room
// until ctx, which must not be nil, ends. The error is f's own, a [*PanicError] if f
// panicked, or says why f did not run: [ErrClosed], [ErrExpired] or [ErrShed]. When ctx
// ends while f runs, Call does not wait for it and returns context.Cause(ctx).
func Call[T any](ctx context.Context, p *Pool, f func(ctx context.Context) (T, error)) (T, error) {
	var zero T
	c := &call[T]{f: f, done: make(chan struct{})}
	if err := p.SubmitTask(Task{Job: c, Ctx: ctx}); err != nil {
		return zero, err
	}
	select {
	case <-c.done:
		return c.result, c.err
	case <-ctx.Done():
	}
	if c.begun.CompareAndSwap(false, true) {
		return zero, &expiredError{context.Cause(ctx)} // Run will do nothing
	}
	select {
	case <-c.done:
		return c.result, c.err
	default:
		return zero, context.Cause(ctx)
	}
}

// call is a job with a result. It belongs to the worker until done is closed.
type call[T any] struct {
	f      func(ctx context.Context) (T, error)
	begun  atomic.Bool // f runs, or must not any more
	result T
	err    error
	done   chan struct{}
}

// Run implements Job.
func (c *call[T]) Run(ctx context.Context) {
	if !c.begun.CompareAndSwap(false, true) {
		return
	}
	defer close(c.done)
	returned := false
	defer func() {
		if !returned {
			c.err = newPanicError(recover())
			panic(c.err) // for the worker to count
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
