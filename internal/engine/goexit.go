package engine

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"runtime/debug"
)

// This file contains runtime.Goexit in a handler, as testing.T.FailNow calls it. Unlike a panic it
// cannot be stopped: all frames of the goroutine end, and their deferred functions run. So the
// connection fails, like one whose handler panicked, and its owner goes on in a deferred function:
// see Outlive. An owner that may be cut short in the middle of its work keeps what is left of that
// in fields, or finishes it in deferred functions.

// ErrGoexit is the value of the PanicError of a handler that called runtime.Goexit.
var ErrGoexit = errors.New("a handler called runtime.Goexit, as testing.T.FailNow does; a handler must return")

// SurviveGoexit calls f until a call returns: again if one ended by runtime.Goexit. All calls run on the
// caller's thread. After a Goexit Outlive does not return: the caller's deferred functions run
// next, and its goroutine ends. f must not leave the thread locked more often than it was.
func SurviveGoexit(f func()) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if v := recover(); v != nil {
			panic(v)
		}
		for !runCoroutine(f) {
		}
	}()
	f()
	returned = true
}

// errExited is what a coroutine that ends by runtime.Goexit panics with.
var errExited = errors.New("the coroutine has ended by runtime.Goexit")

// runCoroutine calls f in a coroutine of this thread, and reports whether f returned. When f calls
// runtime.Goexit, the coroutine alone ends, with its stack: package iter would pass the Goexit on
// to the caller, but not over a panic.
func runCoroutine(f func()) (returned bool) {
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

// endEventAfterGoexit ends the event of a connection whose handler ends the goroutine: the callers of the
// handler don't go on.
func (c *Conn) endEventAfterGoexit() {
	c.endEvent()
	if o := c.runtime.Loop; o != nil && o.OnLoop() { // not on a worker
		o.SettleLater(c)
	}
}

// reportDialFailedGoexit is deferred by NotifyDialFailed. It counts and logs a runtime.Goexit there: no connection
// fails for it.
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
