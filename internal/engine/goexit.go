package engine

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"runtime/debug"
)

// This file handles runtime.Goexit in handlers, which testing.T.FailNow calls. A Goexit cannot be recovered from: the
// goroutine ends after its deferred functions have run. The connection is aborted as after a panic, and its owner
// continues in a deferred function; see RerunAfterGoexitThenExit. So owners keep unfinished work in fields, or finish
// it in deferred functions.

// ErrGoexit is the PanicError.Value after runtime.Goexit in a handler.
var ErrGoexit = errors.New("a handler called runtime.Goexit, as testing.T.FailNow does; a handler must return")

// RerunAfterGoexitThenExit calls f, and repeats the call as long as f ends by runtime.Goexit. All calls run on the
// caller's thread. After a Goexit, RerunAfterGoexitThenExit does not return: the caller's deferred functions run, and
// the caller's goroutine ends. When f ends, the thread must not be locked more often than before.
func RerunAfterGoexitThenExit(f func()) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if v := recover(); v != nil {
			panic(v)
		}
		for !runInCoroutine(f) {
		}
	}()
	f()
	returned = true
}

// errExited is the panic value of a coroutine that has ended by runtime.Goexit.
var errExited = errors.New("the coroutine ended by runtime.Goexit")

// runInCoroutine calls f in a coroutine on this thread and reports whether f returned. If f calls runtime.Goexit, only
// the coroutine ends. The coroutine then panics with errExited, because package iter would otherwise propagate the
// Goexit to the caller.
func runInCoroutine(f func()) (returned bool) {
	next, _ := iter.Pull(func(func(struct{}) bool) {
		defer func() {
			if returned {
				return
			}
			if v := recover(); v != nil {
				panic(v)
			}
			panic(errExited)
		}()
		f()
		returned = true
	})
	defer func() {
		if v := recover(); v != nil && v != any(errExited) {
			panic(v)
		}
	}()
	next()
	return returned
}

// updatePauseAndScheduleActionsAfterGoexit does the work that normally follows a handler call, because the handler ended
// it with runtime.Goexit.
func (c *Conn) updatePauseAndScheduleActionsAfterGoexit() {
	c.startPendingLayerAndUpdatePause()
	if o := c.runtime.Loop; o != nil && o.OnLoop() { // otherwise it is on a worker
		o.PerformActionsLater(c)
	}
}

// reportDialFailedGoexit counts and logs a runtime.Goexit in DialFailed. NotifyDialFailed defers it.
func (rt *Runtime) reportDialFailedGoexit(returned *bool) {
	if *returned {
		return
	}
	if v := recover(); v != nil {
		panic(v)
	}
	rt.Counters.Add(Panics, 1)
	rt.Log.LogAttrs(context.Background(), slog.LevelError, "DialFailed called runtime.Goexit, as testing.T.FailNow does; it must return",
		slog.String("stack", string(debug.Stack())))
}
