package engine

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"runtime/debug"
)

// This file handles runtime.Goexit in handlers, as called by testing.T.FailNow. It can't be
// recovered: all frames of the goroutine end, and their deferred functions run. The connection is
// aborted as after a panic, and its owner continues in a deferred function; see RerunAfterGoexit.
// Owners keep unfinished work in fields, or finish it in deferred functions.

// ErrGoexit is the PanicError.Value after runtime.Goexit in a handler.
var ErrGoexit = errors.New("a handler called runtime.Goexit, as testing.T.FailNow does; a handler must return")

// RerunAfterGoexit calls f, and again while calls end by runtime.Goexit, until one returns. All calls
// run on the caller's thread. After a Goexit RerunAfterGoexit does not return: the caller's deferred
// functions run, and its goroutine ends. f must not leave the thread locked more often than before.
func RerunAfterGoexit(f func()) {
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

// errExited marks a coroutine that has ended by runtime.Goexit.
var errExited = errors.New("the coroutine ended by runtime.Goexit")

// runInCoroutine calls f in a coroutine on this thread and reports whether f returned. If f calls
// runtime.Goexit, only the coroutine ends. It panics then, because package iter would propagate a
// Goexit, but not beyond a panic.
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

// updatePauseAndScheduleActionsAfterGoexit ends the event of a connection whose handler called Goexit, because the
// handler's callers will not.
func (c *Conn) updatePauseAndScheduleActionsAfterGoexit() {
	c.startPendingLayerAndUpdatePause()
	if o := c.runtime.Loop; o != nil && o.OnLoop() { // otherwise it is on a worker
		o.PerformActionsLater(c)
	}
}

// reportDialFailedGoexit is deferred by NotifyDialFailed. It counts and logs a Goexit in
// DialFailed, which no connection can fail for.
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
