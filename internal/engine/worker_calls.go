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
	c.more.closedByWorker = true
}

// ClosedDeferred says whether DeferClosed has been called.
func (c *Conn) ClosedDeferred() bool { return c.more != nil && c.more.closedByWorker }

// UndeferClosed undoes DeferClosed, for a connection that no worker will run: Finish calls
// Closed.
func (c *Conn) UndeferClosed() { c.more.closedByWorker = false }

// Run is a worker's part: the handler's calls that are due. The worker owns the
// connection until Returned has been called.
func (c *Conn) Run(context.Context) {
	start, times, place := c.host.Now(), c.host.Times, int32(0)
	if times != nil {
		place = times.begin()
	}
	defer c.ran(start, times, place) // whatever the handler does
	if c.ClosedDeferred() {
		c.callClosed()
	} else {
		c.Deliver()
	}
}

// ran gives the connection back.
func (c *Conn) ran(start time.Duration, times *RunTimes, place int32) {
	took := c.host.Now() - start
	if times != nil {
		times.end(place, took)
	}
	c.host.Counters.Called(took)
	c.host.judge(c, took)
	c.host.Loop.TakeBack(c, nil)
}

// Dropped is called instead of Run, when a pool that has taken the connection will
// not run it. It may be called on any goroutine, the owner's too, within
// Pool.TrySubmit: it does no more than to give the connection back.
func (c *Conn) Dropped(why error) { c.host.Loop.TakeBack(c, why) }

// MayShed says whether what is due may be shed.
func (c *Conn) MayShed() bool {
	return c.host.Shed != nil && c.state&(ownHandler|inputHeld|openPending|drainedPending|drainingPending|closing|failed) == inputHeld
}

// Shed has the handler answer for the input at hand, which no worker will look at.
func (c *Conn) Shed(why error) {
	c.host.Counters.Add(Shed, 1)
	c.offerBuffered(why)
	c.endEvent()
}

// HandedOver says that the connection waits for a worker, and TakenBack that it is
// its owner's again: in between nobody has read from the peer, or sent to it.
func (c *Conn) HandedOver() {
	for _, b := range []*Buffer{c.in, c.out} {
		if b != nil {
			b.handed = c.host.Clock()
		}
	}
}

func (c *Conn) TakenBack() {
	now := c.host.Clock()
	if c.in == nil {
		c.heard = c.host.coarseNow()
	}
	for _, b := range []*Buffer{c.in, c.out} {
		if b != nil && b.handed > 0 {
			b.since, b.handed = min(b.since+now-b.handed, now), 0
		}
	}
	c.files().extend(now, now)
}
