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

// ErrGoexit is the Value of the PanicError if a handler has called runtime.Goexit.
var ErrGoexit = errors.New("a handler called runtime.Goexit, as testing.T.FailNow does; a handler must return")

// RerunAfterGoexitThenExit calls f. If f calls runtime.Goexit, RerunAfterGoexitThenExit calls f again, until f returns.
// All calls run on the caller's thread. If f returns without having called Goexit, RerunAfterGoexitThenExit returns,
// too. After a Goexit, it does not return: the caller's goroutine runs its deferred functions and ends, because a
// Goexit cannot be undone.
//
// f must balance calls of runtime.LockOSThread and runtime.UnlockOSThread.
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

// errExited is the value with which a coroutine panics after runtime.Goexit was called in the coroutine.
var errExited = errors.New("the coroutine was ended by runtime.Goexit")

// runInCoroutine calls f in a coroutine on this thread. It returns false if f calls runtime.Goexit.
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

func (c *Conn) updatePauseAndScheduleActionsAfterGoexit() {
	c.startPendingLayerAndUpdatePause()
	if o := c.runtime.Loop; o != nil && o.OnLoop() { // otherwise the handler runs on a worker
		o.PerformActionsLater(c)
	}
}

// reportDialFailedGoexit counts and logs a call of runtime.Goexit in DialFailed. It must be called by defer. *returned
// must be true if DialFailed has returned, and false otherwise.
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
