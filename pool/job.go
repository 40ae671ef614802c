package pool

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
)

// Job is what the pool runs. One that is also a [Dropper] is told when it won't be.
type Job interface {
	// Run is called once at most, on a worker. ctx ends with the context that
	// the job was submitted with, when [Pool.Close] gives up waiting, and
	// with the job: it is not to be used when Run has returned.
	Run(ctx context.Context)
}

// Func is a function as a Job.
type Func func(ctx context.Context)

// Run calls the function.
func (f Func) Run(ctx context.Context) { f(ctx) }

// job is the function as a Job, which nil is not.
func (f Func) job() Job {
	if f == nil {
		return nil
	}
	return f
}

// Dropper is a Job that wants to know that it won't run although it was
// accepted.
type Dropper interface {
	Job
	// Dropped is called once, instead of Run, with an error that is ErrExpired,
	// ErrShed or ErrClosed. It is called on a goroutine of the pool or of
	// whoever submits, and does not block. A panic in it is contained.
	Dropped(why error)
}

// Task is a job, and what the pool is to know of it.
type Task struct {
	// Job is required: a task without one is a mistake that panics.
	Job Job
	// Ctx is the job's context; nil is one that ends when Close gives up
	// waiting.
	Ctx context.Context
	// Priority says what runs first. The default is Normal; what is above High
	// is High, and what is below Low is Low.
	Priority Priority
	// Key says whose job it is: a connection, a tenant. Jobs of one priority
	// are taken from each key in turn, so that one with very many does not
	// hold up the others, and when the queue is full, one of the key with the
	// most makes room for a key with fewer. 0 is a key like any other. A
	// hash puts keys in 64 places; those that share one share its turn.
	Key uint64
}

// Priority is what decides between jobs that wait. As long as a job of a higher
// priority waits, none of a lower one is taken, up to the few that are being taken
// at that moment; and when the queue is full, a job of a lower priority makes room
// for one of a higher.
type Priority int8

// The priorities.
const (
	Low    Priority = -1
	Normal Priority = 0
	High   Priority = 1
)

// The errors of this package. All are compared with errors.Is.
var (
	// ErrFull says that the queue was full: the job was not accepted.
	ErrFull = errors.New("pool: full")
	// ErrClosed says that the pool has been closed, before the job was accepted
	// or before it ran.
	ErrClosed = errors.New("pool: closed")
	// ErrExpired says that the job's context ended before it ran. The error
	// is also what context.Cause says of that context.
	ErrExpired = errors.New("pool: the job's context ended before it ran")
	// ErrShed says that the job was shed: it had waited for too long while
	// the pool was overloaded, or it made room for one that had precedence.
	ErrShed = errors.New("pool: shed, because of overload")
	// ErrBadConfig is wrapped by the error of New for a Config that makes no
	// sense.
	ErrBadConfig = errors.New("pool: bad configuration")
	// ErrGoexit is what a PanicError has as its value for a job that ended its
	// goroutine.
	ErrGoexit = errors.New("pool: the job has called runtime.Goexit")
)

// expired is ErrExpired with what ended the context.
type expired struct{ cause error }

func (e *expired) Error() string   { return fmt.Sprintf("%v: %v", ErrExpired, e.cause) }
func (e *expired) Unwrap() []error { return []error{ErrExpired, e.cause} }

// PanicError is a panic of a job, as Call returns it and Config.Panicked hears of
// it.
type PanicError struct {
	// Value is what the job panicked with.
	Value any
	// Stack is the stack of its goroutine then, as debug.Stack gives it.
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("pool: a job panicked: %v", e.Value) }

// Unwrap is the value, if that is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// caught is what a job that did not return has panicked with: nil stands for
// runtime.Goexit.
func caught(v any) *PanicError {
	if p, ok := v.(*PanicError); ok {
		return p // Call has seen it already
	}
	if v == nil {
		v = ErrGoexit
	}
	return &PanicError{Value: v, Stack: debug.Stack()}
}
