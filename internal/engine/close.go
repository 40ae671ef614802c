package engine

// This file closes connections.

// OnEOF reports that the peer will send no more. From then on the output must be sent within
// Limits.CloseTimeout.
func (c *Conn) OnEOF() {
	if l := c.layer(); l != nil && !c.is(peerEOF|closing|failed) {
		c.closeForLayerError(l.OnEOF(c))
	}
	c.OnPeerEOF()
}

// OnPeerEOF is OnEOF for layers that detect the end themselves.
func (c *Conn) OnPeerEOF() {
	c.state |= peerEOF
	if c.is(relayed) && !c.is(closing|failed) {
		c.forwardEOFToPartner()
	} else if x := c.ensureExtra(); x.retainCount > 0 {
		c.lastHeard = c.runtime.coarseNow()
	} else if x.expiry == 0 {
		x.expiry = c.runtime.Now() + c.runtime.Limits.CloseTimeout
	}
}

// OnTransportError aborts the connection because the transport is broken.
func (c *Conn) OnTransportError(err error) { c.Abort(NormalizeError(err)) }

// Abort closes immediately and discards the output. If the connection is closing and has sent
// everything, its close reason stays.
func (c *Conn) Abort(why error) {
	if c.is(closing) && c.UnsentBytes() == 0 {
		c.state |= failed
		return
	}
	c.abortWith(why)
}

// maxDrainReads limits the reads that a drain waits for, so that a peer that keeps sending can't
// delay it.
const maxDrainReads = 64

// StartDrain closes the connection at its next idle moment, and tells the handler. Input in the
// kernel's buffer is handled first.
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

// cancelOrRepeatReadBeforeClose records a read that returned data before a close. The read before the close
// is repeated if there may be more.
func (c *Conn) cancelOrRepeatReadBeforeClose() {
	switch {
	case c.is(draining) && c.extra != nil && c.extra.drainReadsLeft > 0:
		c.extra.drainReadsLeft--
	case c.is(inputHeld) && !c.is(draining): // a worker must look at that first
	default:
		if why, _ := c.exceededTimeLimit(c.runtime.Now()); why == nil {
			c.state &^= readBeforeClose
		}
	}
}

// CloseIfTimedOutAfterEmptyRead reports that a Read has found nothing or has emptied the socket. A connection that
// was to be closed for a timeout is closed now, unless a worker must look at its input first.
func (c *Conn) CloseIfTimedOutAfterEmptyRead() {
	if !c.is(readBeforeClose) || c.is(inputHeld) && !c.is(draining) {
		return
	}
	c.state &^= readBeforeClose
	if why, _ := c.exceededTimeLimit(c.runtime.Now()); why != nil {
		c.closeOrAbortForTimeout(why)
	}
}

func (c *Conn) abortWith(why error) {
	if c.is(closing) && !c.is(failed) {
		c.logCloseIfByLimit(why, 0) // the limit that ended the close
	}
	c.CloseWith(why)
	c.extra.closeReason = why
	c.state |= failed
}

// CloseWith starts to close: no more input is passed to the handler, and the output so far is sent.
// The first reason counts.
func (c *Conn) CloseWith(why error) {
	if c.is(closing) {
		return
	}
	c.logCloseIfByLimit(why, 0)
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
	c.enterClosingState(why)
}

// closeIfNothingPosted starts to close, unless requests are on their way.
func (c *Conn) closeIfNothingPosted(why error) (closeStarted bool) {
	g := c.refLock()
	g.Lock()
	retired := c.refState.advanceGenerationIfNonePosted()
	g.Unlock()
	if !retired {
		return false
	}
	c.enterClosingState(why)
	return true
}

func (c *Conn) enterClosingState(why error) {
	c.state |= closing
	c.runtime.Counters.Add(Closing, 1)
	x := c.ensureExtra()
	x.closeReason = why
	if c.is(relayed) {
		c.closePartner(why)
	}
	switch now := c.runtime.Now(); {
	case c.is(peerEOF) && x.expiry > 0: // its time limit runs already
	case c.is(shut):
		x.expiry = now + c.runtime.Limits.Linger
	default:
		x.expiry = now + c.runtime.Limits.CloseTimeout
	}
}

// nextClosingAction is NextAction for a closing connection that has sent its output.
func (c *Conn) nextClosingAction() Action {
	switch {
	case c.appendLayerCloseOnce():
		return Send
	case c.is(peerEOF):
		return Close
	case c.is(shut):
		return Wait
	}
	return ShutWrite
}

// nextCloseWriteAction is NextAction after CloseWrite, once the output has been sent.
func (c *Conn) nextCloseWriteAction() Action {
	if c.appendLayerCloseOnce() {
		return Send
	}
	return ShutWrite
}

// appendLayerCloseOnce makes the layer append its closing message, once, and reports whether there is
// something to send.
func (c *Conn) appendLayerCloseOnce() (outputPending bool) {
	if c.layer() == nil || c.extra.layerCloseSent {
		return false
	}
	c.extra.layerCloseSent = true
	c.extra.layer.SendClose(c)
	return c.out != nil
}

// CloseWrite shuts the sending direction once all output has been sent, including what is posted by
// then. The peer reads EOF and may keep sending. Later writes fail.
func (c *Conn) CloseWrite() {
	if c.is(open) && !c.is(closing|failed) {
		c.state |= closingWrite
	}
}

// isSendClosed reports whether nothing more can be sent: our direction is shut, or the layer has
// sent its closing message.
func (c *Conn) isSendClosed() bool { return c.is(shut) || c.extra != nil && c.extra.layerCloseSent }

// Retain delays an orderly close, at the peer's EOF or a drain, until Release has been called as
// often: something is still to be written. After EOF the connection is closed when it is idle for
// IdleTimeout.
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

// Release undoes one Retain.
func (c *Conn) Release() {
	if c.extra == nil || c.extra.retainCount == 0 {
		return
	}
	if c.extra.retainCount--; c.extra.retainCount == 0 && c.is(peerEOF) && !c.is(closing) {
		c.extra.expiry = c.runtime.Now() + c.runtime.Limits.CloseTimeout
	}
	c.freeExtraIfZero()
}

func (c *Conn) freeExtraIfZero() {
	if c.extra != nil && c.extra.isZero() {
		c.extra = nil
	}
}

func (c *Conn) delaysOrderlyClose() bool {
	if c.extra != nil && c.extra.independentDirections && !c.is(peerEOF) {
		return true
	}
	return (c.is(relayed) || c.extra != nil && c.extra.retainCount > 0) && !c.is(shut)
}

// CloseReason returns why the connection closes. It must have begun to close.
func (c *Conn) CloseReason() error { return c.extra.closeReason }

// OnClosed reports that the descriptor has been closed. It calls Closed; then the slot may be
// reused.
func (c *Conn) OnClosed() {
	c.dropInput()
	c.dropOutput()
	if c.hasPendingLayer() {
		c.cancelPendingLayer()
	}
	defer c.releaseAndResetAfterClose() // even if the handler panics
	switch {
	case c.is(handshaking):
		c.runtime.Counters.Add(Handshaking, -1)
		c.runtime.recordEndBeforeOpened(c)
		if o := c.ConnHandler(); o != nil {
			c.runtime.NotifyDialFailed(o, c.extra.closeReason)
		}
	case !c.extra.closedByWorker:
		c.callDueOpenedAndClosed()
	}
}

func (c *Conn) releaseAndResetAfterClose() {
	n := c.runtime.Counters
	if !c.is(handshaking) && c.extra.closeReason != ErrHandedOver { // that is counted in ConnsExported
		n.countClosed(closeCauseOf(c.extra.closeReason))
	}
	if l := c.layer(); l != nil {
		l.OnClosed(c)
		c.uncountLayerMemory()
	}
	if c.is(overHighWater) {
		n.Add(Paused, -1)
	}
	c.SetHandlerMemory(0, false)
	c.releaseListenerAndSourceSlots() // before the counters, so that the place is free once they change
	n.Add(Closing, -1)
	n.Add(Open, -1)
	if x := c.extra; x != nil {
		*x = connExtra{}
		extraPool.Put(x)
	}
	c.state, c.extra, c.userData = 0, nil, nil
}
