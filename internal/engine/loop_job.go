package engine

import (
	"runtime"
	"time"
)

// LoopJob is code that is usually quick but may block, such as the handler of an HTTP request. A loop runs jobs on its
// own goroutine. A job may access the loop and its connections only through the LoopHold that RunOnLoop gets.
//
// If a job is still running after a few milliseconds, another goroutine continues the loop on another thread. The job
// keeps the original goroutine, which ends when the job has finished. This limits how long a blocking job delays the
// loop.
type LoopJob interface {
	RunOnLoop(hold LoopHold)
	// LoopContinuedElsewhere is called when another goroutine has continued the loop, because the job took long or has
	// called Leave. isSlow is false if the job may only have waited for a CPU. LoopContinuedElsewhere is called on any
	// goroutine, possibly after RunOnLoop has returned, and must not block.
	LoopContinuedElsewhere(isSlow bool)
}

// LoopHold gives a running LoopJob access to its loop.
type LoopHold interface {
	// Call calls f on the job's goroutine as a handler call of the connection, and then sends the connection's output.
	// If the caller's goroutine no longer runs the loop, Call returns false without calling f. If the connection is
	// closed, Call returns true without calling f.
	Call(r Ref, f func(*Conn)) (calledOrClosed bool)
	// CallAndSendLater is like Call, but the output is sent when the job has returned or when another goroutine
	// continues the loop, so that the output of several calls is sent at once. While a layer is being inserted, f is
	// deferred. Only the goroutine of RunOnLoop may call CallAndSendLater, and f must not call application code.
	CallAndSendLater(r Ref, f ConnCallback) (stillOnLoop bool)
	// Leave makes another goroutine continue the loop immediately. Afterwards, the job's goroutine is not on a loop and
	// may wait. left is false if another goroutine had already continued the loop. Leave is safe for concurrent use.
	Leave() (left bool)
	// Started returns when the job was started, by MonotonicNow.
	Started() time.Duration
	// Usage returns the CPU time and the sleeps of the job's thread. If another goroutine has continued the loop, ok is
	// false. Only the goroutine of RunOnLoop may call Usage.
	Usage() (u ThreadUsage, ok bool)
}

// ThreadUsage contains the CPU time of a thread, the CPU time of its process, and how often the thread has slept.
type ThreadUsage struct {
	CPU, ProcessCPU time.Duration
	Sleeps          int64
}

func (u ThreadUsage) Since(earlier ThreadUsage) ThreadUsage {
	return ThreadUsage{u.CPU - earlier.CPU, u.ProcessCPU - earlier.ProcessCPU, u.Sleeps - earlier.Sleeps}
}

// HadNoCPU estimates whether a thread that slept for the given period was waiting for a CPU. cpuOfOthers is the CPU
// time that the process's other threads used in this period. HadNoCPU returns true if they used nearly all CPU time
// that was available to the process.
func HadNoCPU(period, cpuOfOthers time.Duration) bool {
	return cpuOfOthers >= period*time.Duration(min(runtime.GOMAXPROCS(0), runtime.NumCPU()))-period/2
}

// ConnCallback is a callback for a connection. It is an interface and not a function, because converting an existing
// object to an interface needs no allocation.
type ConnCallback interface{ CallWith(c *Conn) }

// QueueLoopJob makes the loop of c run the job after the current iteration. requests is the number of requests that the
// job answers. QueueLoopJob must be called during a handler call of c. It returns false if the loop cannot run jobs
// now, for example because workers run the handlers.
func (c *Conn) QueueLoopJob(job LoopJob, requests int) (queued bool) {
	return c.runtime.Loop != nil && c.runtime.Loop.OwnsConn(c) && !c.runtime.OnWorkers && c.runtime.Loop.QueueJobOnLoop(job, requests)
}

// CallIfReady calls f as a handler call of the connection. Before Opened and during a handshake, it returns
// false, and the caller must try again later. If the connection is closing, it returns true without calling f.
func (c *Conn) CallIfReady(f ConnCallback) (calledOrClosing bool) {
	if c.hasPendingLayer() || c.is(handshaking|openPending) {
		return false
	}
	if c.is(open) && !c.is(closing|failed) {
		c.callHandler(f.CallWith)
		c.startPendingLayerAndUpdatePause()
	}
	return true
}
