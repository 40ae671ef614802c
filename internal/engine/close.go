package engine

// This file is how connections come to their end.

// OnEOF says that the peer will send no more. It must take its output
// within the time that a close has.
func (c *Conn) OnEOF() {
	if l := c.layer(); l != nil && !c.is(peerEOF|closing|failed) {
		c.handleLayerError(l.OnEOF(c))
	}
	c.OnPeerEOF()
}

// OnPeerEOF is OnEOF for a layer that has been told so by its own means.
func (c *Conn) OnPeerEOF() {
	c.state |= peerEOF
	if c.is(relayed) && !c.is(closing|failed) {
		c.relayEOF()
	} else if x := c.ensureExtra(); x.retainCount > 0 {
		c.lastHeard = c.runtime.coarseNow()
	} else if x.expiry == 0 {
		x.expiry = c.runtime.Now() + c.runtime.Limits.CloseTimeout
	}
}

// OnTransportError says that the transport is broken.
func (c *Conn) OnTransportError(err error) { c.Abort(NormalizeError(err)) }

// Abort closes at once, without sending the output. The reason of a connection that is
// closing already and has nothing unsent stays as it is.
func (c *Conn) Abort(why error) {
	if c.is(closing) && c.UnsentBytes() == 0 {
		c.state |= failed
		return
	}
	c.abortWith(why)
}

// maxDrainReads is how many reads a drain waits for at the most: a peer that goes on
// sending does not keep it from closing.
const maxDrainReads = 64

// StartDrain closes at the next moment at which nothing is under way, and tells the
// handler. What the kernel has taken from the peer by now is under way.
func (c *Conn) StartDrain() {
	if c.is(draining | closing) {
		return
	}
	if c.runtime.Draining != nil || c.is(ownHandler) {
		c.state |= drainingPending
	}
	c.state |= draining | readBeforeClose
	c.ensureExtra().drainReadsLeft = maxDrainReads
}

// noteReadBeforeClose takes note of a read that brought something: there may be more.
func (c *Conn) noteReadBeforeClose() {
	switch {
	case c.is(draining) && c.extra != nil && c.extra.drainReadsLeft > 0:
		c.extra.drainReadsLeft--
	case c.is(inputHeld) && !c.is(draining): // a worker has to look at that first
	default:
		if why, _ := c.exceededLimit(c.runtime.Now()); why == nil {
			c.state &^= readBeforeClose
		}
	}
}

// OnReadEmpty says that a Read has found nothing, or all there was. A peer whose time was
// over is given up then, unless a worker has to look at what has come first.
func (c *Conn) OnReadEmpty() {
	if !c.is(readBeforeClose) || c.is(inputHeld) && !c.is(draining) {
		return
	}
	c.state &^= readBeforeClose
	if why, _ := c.exceededLimit(c.runtime.Now()); why != nil {
		c.closeForTimeout(why)
	}
}

// abortWith gives up the connection: unsent output is dropped.
func (c *Conn) abortWith(why error) {
	if c.is(closing) && !c.is(failed) {
		c.logLimitClose(why, 0) // that of the close itself
	}
	c.CloseWith(why)
	c.extra.closeReason = why
	c.state |= failed
}

// CloseWith starts to close: no more input is offered, output so far is sent.
// The first reason counts.
func (c *Conn) CloseWith(why error) {
	if c.is(closing) {
		return
	}
	c.logLimitClose(why, 0)
	c.startClosing(why)
}

func (c *Conn) startClosing(why error) {
	g := c.refLock()
	g.Lock()
	waiting := c.refState.startNextGeneration()
	g.Unlock()
	if waiting {
		c.runtime.sendWaiters.wakeAll(c)
	}
	c.enterClosing(why)
}

// closeIfNothingPosted starts to close in order: not while mail is on its way.
func (c *Conn) closeIfNothingPosted(why error) bool {
	g := c.refLock()
	g.Lock()
	retired := c.refState.nextGenerationIfIdle()
	g.Unlock()
	if !retired {
		return false
	}
	c.enterClosing(why)
	return true
}

func (c *Conn) enterClosing(why error) {
	c.state |= closing
	c.runtime.Counters.Add(Closing, 1)
	x := c.ensureExtra()
	x.closeReason = why
	if c.is(relayed) {
		c.closePartner(why)
	}
	switch now := c.runtime.Now(); {
	case c.is(peerEOF) && x.expiry > 0: // it has its time already
	case c.is(shut):
		x.expiry = now + c.runtime.Limits.Linger
	default:
		x.expiry = now + c.runtime.Limits.CloseTimeout
	}
}

// nextClosingAction is Next for a closing connection with nothing unsent.
func (c *Conn) nextClosingAction() Action {
	switch {
	case c.sendLayerClose():
		return Send
	case c.is(peerEOF):
		return Close
	case c.is(shut):
		return Wait
	}
	return ShutWrite
}

// nextShutAction is Next for one that is to shut its sending direction, with nothing unsent.
func (c *Conn) nextShutAction() Action {
	if c.sendLayerClose() {
		return Send
	}
	return ShutWrite
}

// sendLayerClose has the layer say goodbye, once, and says whether there is something to
// send.
func (c *Conn) sendLayerClose() bool {
	if c.layer() == nil || c.extra.layerCloseSent {
		return false
	}
	c.extra.layerCloseSent = true
	c.extra.layer.SendClose(c)
	return c.out != nil
}

// CloseWrite shuts our sending direction when everything has been sent, what was
// posted by then included: the peer reads its end, and may send on. Later writes fail.
func (c *Conn) CloseWrite() {
	if c.is(open) && !c.is(closing|failed) {
		c.state |= closingWrite
	}
}

// isSendClosed says whether our direction has ended: it is shut, or the layer has said
// goodbye.
func (c *Conn) isSendClosed() bool { return c.is(shut) || c.extra != nil && c.extra.layerCloseSent }

// Retain keeps the connection from being closed in order, for the peer's end or a
// drain, until Release has been called as often: something is still to be written. A
// peer that has ended waits for IdleTimeout at most.
func (c *Conn) Retain() {
	if !c.is(open) || c.is(closing|failed) {
		return
	}
	c.runtime.RetainCalls.Add(1)
	x := c.ensureExtra()
	if x.retainCount++; c.is(peerEOF) {
		x.expiry, c.lastHeard = 0, c.runtime.coarseNow()
	}
}

// Release takes one Retain back.
func (c *Conn) Release() {
	if c.extra == nil || c.extra.retainCount == 0 {
		return
	}
	if c.extra.retainCount--; c.extra.retainCount == 0 && c.is(peerEOF) && !c.is(closing) {
		c.extra.expiry = c.runtime.Now() + c.runtime.Limits.CloseTimeout
	}
	c.freeExtraIfZero()
}

// freeExtraIfZero lets go of what nothing is in any more.
func (c *Conn) freeExtraIfZero() {
	if c.extra != nil && c.extra.isZero() {
		c.extra = nil
	}
}

// isRetained says whether it is, and can still be written to, or read from.
func (c *Conn) isRetained() bool {
	if c.extra != nil && c.extra.independentDirections && !c.is(peerEOF) {
		return true
	}
	return (c.is(relayed) || c.extra != nil && c.extra.retainCount > 0) && !c.is(shut)
}

// CloseReason is the reason of a connection that has begun to close, for its owner.
func (c *Conn) CloseReason() error { return c.extra.closeReason }

// OnClosed says that the descriptor has been closed, and calls Closed. The slot
// may be used again afterwards.
func (c *Conn) OnClosed() {
	c.dropInput()
	c.dropOutput()
	if c.hasPendingLayer() {
		c.dropPendingLayer()
	}
	defer c.resetAfterClose() // whatever the handler does
	switch {
	case c.is(handshaking):
		c.runtime.Counters.Add(Handshaking, -1)
		c.runtime.recordRejected(c)
		if o := c.ConnHandler(); o != nil {
			c.runtime.NotifyDialFailed(o, c.extra.closeReason)
		}
	case !c.extra.closedByWorker:
		c.callClosed()
	}
}

// resetAfterClose is the rest of Finish, when the handler has heard of the end.
func (c *Conn) resetAfterClose() {
	n := c.runtime.Counters
	if !c.is(handshaking) && c.extra.closeReason != ErrHandedOver { // it is counted in ConnsExported
		n.countClosed(closeCauseOf(c.extra.closeReason))
	}
	if l := c.layer(); l != nil {
		l.OnClosed(c)
		c.releaseLayerMemory()
	}
	if c.is(overHighWater) {
		n.Add(Paused, -1)
	}
	c.SetHandlerMemory(0, false)
	c.releaseListenerAndSource() // first: who sees the count finds the place free
	n.Add(Closing, -1)
	n.Add(Open, -1)
	if x := c.extra; x != nil {
		*x = connExtra{}
		extraPool.Put(x)
	}
	c.state, c.extra, c.userData = 0, nil, nil
}
