package pool

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
)

// Job is a unit of work. A Job that also implements [Dropper] is notified if the pool has accepted it but will not run
// it.
type Job interface {
	// Run is called at most once, on a worker. ctx ends when the context of the submission ends or when [Pool.Close]
	// stops waiting for running jobs. It may also end when Run returns.
	Run(ctx context.Context)
}

// Func is a function that implements Job.
type Func func(ctx context.Context)

// Run calls f.
func (f Func) Run(ctx context.Context) { f(ctx) }

// Dropper is a Job that is notified if the pool has accepted it but will not run it.
type Dropper interface {
	Job
	// Dropped is called once, instead of Run. reason matches [ErrExpired], [ErrShed] or [ErrClosed]. Dropped
	// runs on a goroutine of the pool or within Close, and must not block.
	Dropped(reason error)
}

// Task is a job with its context.
type Task struct {
	// Job is required. Submitting a task without a job panics.
	Job Job
	// Ctx, if set, limits how long the job may wait and run. If Ctx ends before the job runs, the pool drops the job
	// with [ErrExpired]. If Ctx ends while the job runs, the context passed to Run also ends.
	Ctx context.Context
}

// Errors of this package. Compare them with errors.Is.
var (
	// ErrFull reports that the job was rejected: neither a worker nor space in the queue was available.
	ErrFull = errors.New("pool: full")
	// ErrClosed reports that the pool was closed before the job was accepted or ran.
	ErrClosed = errors.New("pool: closed")
	// ErrExpired reports that the job's context ended before it ran. The error also wraps the context's cause.
	ErrExpired = errors.New("pool: the job's context ended before it ran")
	// ErrShed reports that the job was shed: it had waited too long while the pool was overloaded.
	ErrShed = errors.New("pool: shed because of overload")
	// ErrBadConfig is wrapped by errors about an invalid Config.
	ErrBadConfig = errors.New("pool: bad configuration")
	// ErrGoexit is the Value of the PanicError of a job that called runtime.Goexit.
	ErrGoexit = errors.New("pool: the job called runtime.Goexit")
)

type expiredError struct{ cause error }

func (e *expiredError) Error() string   { return fmt.Sprintf("%v: %v", ErrExpired, e.cause) }
func (e *expiredError) Unwrap() []error { return []error{ErrExpired, e.cause} }

// PanicError describes the panic of a job. Call returns it as an error, and Config.Panicked receives it.
type PanicError struct {
	// Value is the argument of panic. If the job has called runtime.Goexit, Value is [ErrGoexit].
	Value any
	// Stack is the stack trace of the goroutine, as formatted by debug.Stack.
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("pool: a job panicked: %v", e.Value) }

// Unwrap returns Value if Value is an error, and nil otherwise.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

func toPanicError(recoveredOrNilForGoexit any) *PanicError {
	if p, ok := recoveredOrNilForGoexit.(*PanicError); ok {
		return p // created by Call
	}
	if recoveredOrNilForGoexit == nil {
		recoveredOrNilForGoexit = ErrGoexit
	}
	return &PanicError{Value: recoveredOrNilForGoexit, Stack: debug.Stack()}
}

// Call runs f on a worker, waits for f, and returns the results of f. Like Submit, it first waits for a worker or queue
// space until ctx ends. ctx must not be nil.
//
// If f panics, the error is a [*PanicError]. If f does not run, the error matches [ErrClosed], [ErrExpired] or
// [ErrShed]. If ctx ends while f runs, Call returns context.Cause(ctx) without waiting for f.
func Call[T any](ctx context.Context, p *Pool, f func(ctx context.Context) (T, error)) (T, error) {
	var zero T
	c := &call[T]{f: f, done: make(chan struct{})}
	if err := p.SubmitTask(Task{Job: c, Ctx: ctx}); err != nil {
		return zero, err
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		if c.begun.CompareAndSwap(false, true) {
			return zero, &expiredError{context.Cause(ctx)} // Run will not call f
		}
		select {
		case <-c.done:
		default:
			return zero, context.Cause(ctx)
		}
	}
	return c.result, c.err
}

// call is the Job that the function Call submits. result and err may be read only after done is closed.
type call[T any] struct {
	f      func(ctx context.Context) (T, error)
	begun  atomic.Bool // set when f begins, or to prevent that f begins
	result T
	err    error
	done   chan struct{}
}

func (c *call[T]) Run(ctx context.Context) {
	if !c.begun.CompareAndSwap(false, true) {
		return
	}
	defer close(c.done)
	returned := false
	defer func() {
		if !returned {
			c.err = toPanicError(recover())
			panic(c.err) // counted by the worker
		}
	}()
	c.result, c.err = c.f(ctx)
	returned = true
}

func (c *call[T]) Dropped(reason error) {
	c.err = reason
	close(c.done)
}
