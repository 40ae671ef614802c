package engine

import (
	"context"
	"time"
)

// This file is a worker's part of a connection: what makes it a job of a pool.
//
// # What may be shed
//
// A connection is handed over when something is due for its handler. Of that,
//
//	Opened, Ended, Closed     come once, and a handler relies on each of them
//	Writable, Draining        come once for what they tell
//	Received                  is input, which a protocol can answer with "busy"
//
// so only input may be shed, and only if the handler has said what is to happen
// instead (Host.Shed). Where anything else is due, alone or with input, the
// connection waits until a worker has room: none of these calls is ever lost, and
// none comes out of turn. The peer's end may be due behind input: then the input
// is shed, and Ended waits with what that has left.
//
// To shed is to call Shed instead of Received, with the same input in the same
// pieces, and to keep what it does not use in the same way. So a framer cuts the
// same messages whichever is called, each of them goes to one of the two, and
// the answers are in order.

// DeferClosed is for a connection whose Closed a worker is to call: Run does that, and
// Finish then does not. Its buffers are of no more use.
func (c *Conn) DeferClosed() {
	c.dropInput()
	c.dropOutput()
	c.extra.closedByWorker = true
}

// IsClosedDeferred says whether DeferClosed has been called.
func (c *Conn) IsClosedDeferred() bool { return c.extra != nil && c.extra.closedByWorker }

// UndeferClosed undoes DeferClosed, for a connection that no worker will run: Finish calls
// Closed.
func (c *Conn) UndeferClosed() { c.extra.closedByWorker = false }

// Run is a worker's part: the handler's calls that are due. The worker owns the
// connection until Returned has been called.
func (c *Conn) Run(context.Context) {
	start, times, slot := c.runtime.Now(), c.runtime.HandlerTimes, int32(0)
	if times != nil {
		slot = times.startCall()
	}
	defer c.finishRun(start, times, slot) // whatever the handler does
	if c.IsClosedDeferred() {
		c.callClosed()
	} else {
		c.FeedHandler()
	}
}

// finishRun gives the connection back.
func (c *Conn) finishRun(started time.Duration, times *HandlerTimes, slot int32) {
	took := c.runtime.Now() - started
	if times != nil {
		times.endCall(slot, took)
	}
	c.runtime.Counters.CountHandlerCall(took)
	c.runtime.reportSlowHandler(c, took)
	c.runtime.Loop.ReturnFromWorker(c, nil)
}

// Dropped is called instead of Run, when a pool that has taken the connection will
// not run it. It may be called on any goroutine, the owner's too, within
// Pool.TrySubmit: it does no more than to give the connection back.
func (c *Conn) Dropped(why error) { c.runtime.Loop.ReturnFromWorker(c, why) }

// CanShed says whether what is due may be shed.
func (c *Conn) CanShed() bool {
	return c.runtime.Shed != nil && c.state&(ownHandler|inputHeld|openPending|drainedPending|drainingPending|closing|failed) == inputHeld
}

// ShedInput has the handler answer for the input at hand, which no worker will look at.
func (c *Conn) ShedInput(why error) {
	c.runtime.Counters.Add(Shed, 1)
	c.feedBuffered(why)
	c.endEvent()
}

// ConnsExported says that the connection waits for a worker, and OnReturnedFromWorker that it is
// its owner's again: in between nobody has read from the peer, or sent to it.
func (c *Conn) OnSubmittedToWorker() {
	for _, b := range []*Buffer{c.in, c.out} {
		if b != nil {
			b.withWorkerSince = c.runtime.Clock()
		}
	}
}

func (c *Conn) OnReturnedFromWorker() {
	now := c.runtime.Clock()
	if c.in == nil {
		c.lastHeard = c.runtime.coarseNow()
	}
	for _, b := range []*Buffer{c.in, c.out} {
		if b != nil && b.withWorkerSince > 0 {
			b.waitingSince, b.withWorkerSince = min(b.waitingSince+now-b.withWorkerSince, now), 0
		}
	}
	c.queuedFiles().extendWaiting(now, now)
}
