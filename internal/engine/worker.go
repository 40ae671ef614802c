package engine

import (
	"context"
	"time"
)

// This file runs a connection as a job of a worker pool.
//
// # Shedding
//
// A connection is submitted when handler calls are due:
//
// 	Opened, Ended, Closed     come once each, and handlers rely on them
// 	Drained, Missed, Draining come once for each event
// 	Received                  is input that a protocol can answer with "busy"
//
// So only input may be shed: passed to the handler's Shed method (Config.Shed), if any, instead of Received. If another
// call is due, the connection waits for a worker. If a call of Ended is due after input, the input is shed, and Ended
// waits for a worker.
//
// Shed gets the same input in the same pieces as Received would. The bytes that Shed leaves unused are kept. So a
// framer finds the same messages with either method, each message goes to one of the two methods, and the answers are
// in order.

// FreeBuffersAndDeferClosed frees c's buffers, and leaves the call of the handler's Closed to a worker: Run makes this
// call, and OnClosed does not.
func (c *Conn) FreeBuffersAndDeferClosed() {
	c.dropInput()
	c.dropOutput()
	c.extra.closedByWorker = true
}

func (c *Conn) IsClosedDeferred() bool { return c.extra != nil && c.extra.closedByWorker }

// UndeferClosed is called after FreeBuffersAndDeferClosed if no worker will run c. It makes OnClosed call the handler's
// Closed again.
func (c *Conn) UndeferClosed() { c.extra.closedByWorker = false }

// Run makes the pending handler calls on a worker and then returns c to the loop. The worker owns c during the call. If
// c has waited too long for a worker during an overload, Run makes no calls. Instead, it returns c with ErrOverloaded,
// so that the loop can shed c's input.
func (c *Conn) Run(context.Context) {
	if !c.tryStartTicket() {
		c.Dropped(ErrOverloaded)
		return
	}
	start, times, slot := c.runtime.Now(), c.runtime.HandlerTimes, int32(0)
	if times != nil {
		slot = times.startCall()
	}
	defer c.recordRunAndReturnToLoop(start, times, slot) // even after a panic
	if c.IsClosedDeferred() {
		c.callClosedAfterDueOpened()
	} else {
		c.MakeDeferredHandlerCalls()
	}
}

func (c *Conn) recordRunAndReturnToLoop(started time.Duration, times *WorkerCallTimes, slot int32) {
	took := c.runtime.Now() - started
	if times != nil {
		times.endCall(slot, took)
	}
	c.runtime.Counters.CountHandlerCall(took)
	c.runtime.reportIfSlowHandler(c, took)
	c.endTicket()
	c.runtime.Loop.ReturnFromWorker(c, nil)
}

// Dropped returns c to the loop without making handler calls. The pool calls Dropped when it drops the job that would
// run c. The pool may call Dropped on any goroutine, and even within Pool.TrySubmit.
func (c *Conn) Dropped(reason error) { c.runtime.Loop.ReturnFromWorker(c, reason) }

// CanShed reports whether the handler's Shed may be called instead of the pending handler calls.
func (c *Conn) CanShed() bool {
	return c.state&(ownHandler|inputHeld|openPending|drainedPending|drainingPending|closing|failed) == inputHeld && c.callbacks().Shed != nil
}

// CallShedHandler passes the buffered input and the reason of the rejection to the handler's Shed. It must be called on
// the loop.
func (c *Conn) CallShedHandler(rejection error) {
	c.runtime.Counters.Add(Shed, 1)
	c.feedOrShedBuffered(rejection)
	c.startPendingLayerAndUpdatePause()
}

// RecordSubmittedTime records that c begins to wait for a worker now. See ExcludeWorkerTimeFromTimeouts.
func (c *Conn) RecordSubmittedTime() {
	for _, b := range []*Buffer{c.in, c.out} {
		if b != nil {
			b.withWorkerSince = c.runtime.Clock()
		}
	}
}

// ExcludeWorkerTimeFromTimeouts extends c's time limits by the time that has passed since RecordSubmittedTime, because
// the peer has not caused this delay.
func (c *Conn) ExcludeWorkerTimeFromTimeouts() {
	now := c.runtime.Clock()
	if c.in == nil {
		c.lastHeard = c.runtime.coarseNow()
	}
	for _, b := range []*Buffer{c.in, c.out} {
		if b != nil && b.withWorkerSince > 0 {
			b.waitingSince, b.withWorkerSince = min(b.waitingSince+now-b.withWorkerSince, now), 0
		}
	}
	c.fileQueueOrNil().extendProgressTimer(now, now)
}
