package pool

import (
	"context"
	"reflect"
	"sync"
)

// joined is a job's own context that ends with the pool's, too, and with the job
// if somebody has asked for its end meanwhile. Most jobs don't, and it costs them
// nothing: a worker uses it again for the next job with the same context.
type joined struct {
	context.Context // the job's own
	pool            context.Context
	pointer         bool // the job's own is one, so that it can be compared safely

	mu     sync.Mutex
	done   context.Context // both together, once asked for
	cancel context.CancelCauseFunc
	stop   func() bool
	over   bool // the worker's: not to be used again
}

func join(own, pool context.Context) *joined {
	return &joined{Context: own, pool: pool, pointer: reflect.TypeOf(own).Kind() == reflect.Pointer}
}

// serves says whether it can be used again for a job with such a context.
func (j *joined) serves(own context.Context) bool { return !j.over && j.pointer && j.Context == own }

// Done implements context.Context.
func (j *joined) Done() <-chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.done == nil {
		j.done, j.cancel = context.WithCancelCause(j.Context)
		cancel := j.cancel
		j.stop = context.AfterFunc(j.pool, func() { cancel(ErrClosed) })
	}
	return j.done.Done()
}

// Err implements context.Context.
func (j *joined) Err() error {
	j.mu.Lock()
	done := j.done
	j.mu.Unlock()
	if done != nil {
		if err := done.Err(); err != nil {
			return err
		}
	}
	if err := j.Context.Err(); err != nil {
		return err
	}
	return j.pool.Err()
}

// Value implements context.Context. When the pool has ended it, context.Cause,
// which asks for a value, finds the pool's cause.
func (j *joined) Value(key any) any {
	if j.Context.Err() == nil && j.pool.Err() != nil {
		if v := j.pool.Value(key); v != nil {
			return v
		}
	}
	return j.Context.Value(key)
}

// end is called by the worker when the job has returned.
func (j *joined) end() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.done != nil {
		j.stop()
		j.cancel(context.Canceled)
		j.over = true
	}
}
