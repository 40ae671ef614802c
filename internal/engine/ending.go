package engine

// This file is how connections come to their end.

// PeerClosed says that the peer will send no more. It must take its output
// within the time that a close has.
func (c *Conn) PeerClosed() {
	if l := c.layer(); l != nil && !c.is(peerEnded|closing|failed) {
		c.failLayer(l.Ended(c))
	}
	c.PeerEnded()
}

// PeerEnded is PeerClosed for a layer that has been told so by its own means.
func (c *Conn) PeerEnded() {
	c.state |= peerEnded
	if c.is(relayed) && !c.is(closing|failed) {
		c.relayEnd()
	} else if x := c.extra(); x.retained > 0 {
		c.heard = c.host.coarseNow()
	} else if x.due == 0 {
		x.due = c.host.Now() + c.host.Limits.CloseTimeout
	}
}

// Failed says that the transport is broken.
func (c *Conn) Failed(err error) { c.Abort(Reason(err)) }

// Abort closes at once, without sending the output. The reason of a connection that is
// closing already and has nothing unsent stays as it is.
func (c *Conn) Abort(why error) {
	if c.is(closing) && c.Pending() == 0 {
		c.state |= failed
		return
	}
	c.fail(why)
}

// drainReads is how many reads a drain waits for at the most: a peer that goes on
// sending does not keep it from closing.
const drainReads = 64

// Drain closes at the next moment at which nothing is under way, and tells the
// handler. What the kernel has taken from the peer by now is under way.
func (c *Conn) Drain() {
	if c.is(draining | closing) {
		return
	}
	if c.host.Draining != nil || c.is(ownHandler) {
		c.state |= drainingPending
	}
	c.state |= draining | readBeforeClose
	c.extra().reads = drainReads
}

// stillUnread takes note of a read that brought something: there may be more.
func (c *Conn) stillUnread() {
	switch {
	case c.is(draining) && c.more != nil && c.more.reads > 0:
		c.more.reads--
	case c.is(inputHeld) && !c.is(draining): // a worker has to look at that first
	default:
		if why, _ := c.overdue(c.host.Now()); why == nil {
			c.state &^= readBeforeClose
		}
	}
}

// Empty says that a Read has found nothing, or all there was. A peer whose time was
// over is given up then, unless a worker has to look at what has come first.
func (c *Conn) Empty() {
	if !c.is(readBeforeClose) || c.is(inputHeld) && !c.is(draining) {
		return
	}
	c.state &^= readBeforeClose
	if why, _ := c.overdue(c.host.Now()); why != nil {
		c.giveUp(why)
	}
}

// fail gives up the connection: unsent output is dropped.
func (c *Conn) fail(why error) {
	if c.is(closing) && !c.is(failed) {
		c.logLimit(why, 0) // that of the close itself
	}
	c.CloseWith(why)
	c.more.why = why
	c.state |= failed
}

// CloseWith starts to close: no more input is offered, output so far is sent.
// The first reason counts.
func (c *Conn) CloseWith(why error) {
	if c.is(closing) {
		return
	}
	c.logLimit(why, 0)
	c.beginClose(why)
}

func (c *Conn) beginClose(why error) {
	g := c.guard()
	g.Lock()
	wanted := c.mark.next()
	g.Unlock()
	if wanted {
		c.host.senders.wake(c)
	}
	c.setClosing(why)
}

// retire starts to close in order: not while mail is on its way.
func (c *Conn) retire(why error) bool {
	g := c.guard()
	g.Lock()
	retired := c.mark.retire()
	g.Unlock()
	if !retired {
		return false
	}
	c.setClosing(why)
	return true
}

func (c *Conn) setClosing(why error) {
	c.state |= closing
	c.host.Counters.Add(Closing, 1)
	x := c.extra()
	x.why = why
	if c.is(relayed) {
		c.relayClose(why)
	}
	switch now := c.host.Now(); {
	case c.is(peerEnded) && x.due > 0: // it has its time already
	case c.is(shut):
		x.due = now + c.host.Limits.Linger
	default:
		x.due = now + c.host.Limits.CloseTimeout
	}
}

// nextClosing is Next for a closing connection with nothing unsent.
func (c *Conn) nextClosing() Action {
	switch {
	case c.sayGoodbye():
		return Send
	case c.is(peerEnded):
		return Close
	case c.is(shut):
		return Wait
	}
	return Shut
}

// nextShut is Next for one that is to shut its sending direction, with nothing unsent.
func (c *Conn) nextShut() Action {
	if c.sayGoodbye() {
		return Send
	}
	return Shut
}

// sayGoodbye has the layer say goodbye, once, and says whether there is something to
// send.
func (c *Conn) sayGoodbye() bool {
	if c.layer() == nil || c.more.byeSent {
		return false
	}
	c.more.byeSent = true
	c.more.layer.Closing(c)
	return c.out != nil
}

// CloseWrite shuts our sending direction when everything has been sent, what was
// posted by then included: the peer reads its end, and may send on. Later writes fail.
func (c *Conn) CloseWrite() {
	if c.is(open) && !c.is(closing|failed) {
		c.state |= closingWrite
	}
}

// sendClosed says whether our direction has ended: it is shut, or the layer has said
// goodbye.
func (c *Conn) sendClosed() bool { return c.is(shut) || c.more != nil && c.more.byeSent }

// Retain keeps the connection from being closed in order, for the peer's end or a
// drain, until Release has been called as often: something is still to be written. A
// peer that has ended waits for IdleTimeout at most.
func (c *Conn) Retain() {
	if !c.is(open) || c.is(closing|failed) {
		return
	}
	c.host.Retained.Add(1)
	x := c.extra()
	if x.retained++; c.is(peerEnded) {
		x.due, c.heard = 0, c.host.coarseNow()
	}
}

// Release takes one Retain back.
func (c *Conn) Release() {
	if c.more == nil || c.more.retained == 0 {
		return
	}
	if c.more.retained--; c.more.retained == 0 && c.is(peerEnded) && !c.is(closing) {
		c.more.due = c.host.Now() + c.host.Limits.CloseTimeout
	}
	c.shrink()
}

// shrink lets go of what nothing is in any more.
func (c *Conn) shrink() {
	if c.more != nil && c.more.empty() {
		c.more = nil
	}
}

// retained says whether it is, and can still be written to, or read from.
func (c *Conn) retained() bool {
	if c.more != nil && c.more.duplex && !c.is(peerEnded) {
		return true
	}
	return (c.is(relayed) || c.more != nil && c.more.retained > 0) && !c.is(shut)
}

// Why is the reason of a connection that has begun to close, for its owner.
func (c *Conn) Why() error { return c.more.why }

// Finish says that the descriptor has been closed, and calls Closed. The slot
// may be used again afterwards.
func (c *Conn) Finish() {
	c.dropInput()
	c.dropOutput()
	if c.upgrades() {
		c.endUpgrade()
	}
	defer c.finished() // whatever the handler does
	switch {
	case c.is(greeting):
		c.host.Counters.Add(Greeting, -1)
		c.host.turnedAway(c)
		if o := c.Owned(); o != nil {
			c.host.DialFailed(o, c.more.why)
		}
	case !c.more.closedByWorker:
		c.callClosed()
	}
}

// finished is the rest of Finish, when the handler has heard of the end.
func (c *Conn) finished() {
	n := c.host.Counters
	if !c.is(greeting) && c.more.why != ErrHandedOver { // it is counted in HandedOver
		n.close(closeCause(c.more.why))
	}
	if l := c.layer(); l != nil {
		l.Closed(c)
		c.forgetHeld()
	}
	if c.is(overHighWater) {
		n.Add(Paused, -1)
	}
	c.Hold(0, false)
	c.leave() // first: who sees the count finds the place free
	n.Add(Closing, -1)
	n.Add(Open, -1)
	if x := c.more; x != nil {
		*x = extra{}
		extras.Put(x)
	}
	c.state, c.more, c.user = 0, nil, nil
}
