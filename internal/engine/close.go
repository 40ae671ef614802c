package engine

// OnEOF records that the peer will send no more input. The output must then be sent within Limits.CloseTimeout.
func (c *Conn) OnEOF() {
	if l := c.layer(); l != nil && !c.is(peerEOF|closing|failed) {
		c.closeOrAbortIfLayerError(l.OnEOF(c))
	}
	c.MarkPeerEOFAndStartTimeout()
}

// MarkPeerEOFAndStartTimeout is like OnEOF, but does not notify the layer. It is for layers that detect EOF themselves.
func (c *Conn) MarkPeerEOFAndStartTimeout() {
	c.state |= peerEOF
	if c.is(relayed) && !c.is(closing|failed) {
		c.forwardEOFToPartner()
	} else if x := c.ensureExtra(); x.retainCount > 0 {
		c.lastHeard = c.runtime.coarseNow()
	} else if x.expiry == 0 {
		x.expiry = c.runtime.Now() + c.runtime.Limits.CloseTimeout
	}
}

func (c *Conn) OnTransportError(err error) { c.Abort(NormalizeError(err)) }

// Abort closes the connection immediately and discards the output. If the connection is already closing and has sent
// all of its output, the close reason does not change.
func (c *Conn) Abort(why error) {
	if c.is(closing) && c.UnsentOrDroppedBytes() == 0 {
		c.state |= failed
		return
	}
	c.abortWith(why)
}

// maxDrainReads limits the reads before a drain closes a connection, because a peer may never stop sending.
const maxDrainReads = 64

// StartDrain tells the handler of the shutdown and closes the connection at its next idle moment. Input in the kernel's
// buffer is handled first.
func (c *Conn) StartDrain() {
	if c.is(draining | closing) {
		return
	}
	if c.callbacks().Draining != nil || c.is(ownHandler) {
		c.state |= drainingPending
	}
	c.state |= draining | readBeforeClose
	c.ensureRare().drainReadsLeft = maxDrainReads
}

// cancelReadBeforeCloseUnlessMore handles data from the last read before a timeout or drain closes the connection. It
// cancels the close, unless a drain must read again, a worker must handle the input, or a time limit is still exceeded.
func (c *Conn) cancelReadBeforeCloseUnlessMore() {
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

// CloseIfTimedOutAfterEmptyRead handles a Read that found nothing or emptied the socket. It closes the connection if a
// time limit is exceeded, unless a worker must handle the connection's input first.
func (c *Conn) CloseIfTimedOutAfterEmptyRead() {
	if !c.is(readBeforeClose) || c.is(inputHeld) && !c.is(draining) {
		return
	}
	c.state &^= readBeforeClose
	if why, _ := c.exceededTimeLimit(c.runtime.Now()); why != nil {
		c.closeOrAbortByTimeoutKind(why)
	}
}

func (c *Conn) abortWith(why error) {
	if c.is(closing) && !c.is(failed) {
		c.logCloseIfByLimit(why, 0) // the limit that ended the close
	}
	c.CloseWith(why)
	c.ensureRare().closeReason = why
	c.state |= failed
}

// CloseWith starts to close the connection. Output written so far is sent. The handler gets no more input. Only the
// first close reason is recorded.
func (c *Conn) CloseWith(why error) {
	if c.is(closing) {
		return
	}
	c.logCloseIfByLimit(why, 0)
	c.invalidateRefsAndStartClosing(why)
}

// CloseAfterPeer is like CloseWith, but waits for the peer's EOF before it shuts the sending direction. If no EOF
// arrives within Limits.CloseTimeout, the connection closes.
func (c *Conn) CloseAfterPeer(why error) {
	if !c.is(closing | shut) {
		c.CloseWith(why)
		c.ensureRare().peerClosesFirst = true
	}
}

func (c *Conn) invalidateRefsAndStartClosing(why error) {
	g := c.refLock()
	g.Lock()
	waiting := c.refState.startNextGeneration()
	g.Unlock()
	if waiting {
		c.runtime.sendWaiters.signalSpaceFreed(c)
	}
	c.enterClosingStateWithPartner(why)
}

func (c *Conn) closeIfNothingPosted(why error) (closeStarted bool) {
	g := c.refLock()
	g.Lock()
	retired := c.refState.advanceGenerationIfNonePosted()
	g.Unlock()
	if !retired {
		return false
	}
	c.enterClosingStateWithPartner(why)
	return true
}

func (c *Conn) enterClosingStateWithPartner(why error) {
	c.state |= closing
	c.runtime.Counters.Add(Closing, 1)
	x := c.ensureExtra()
	c.ensureRare().closeReason = why
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

// nextClosingAction returns the next action of a closing connection that has sent its output (see AdvanceToNextAction).
func (c *Conn) nextClosingAction() Action {
	switch {
	case c.extra.peerClosesFirst && !c.is(peerEOF):
		return Wait
	case c.appendLayerCloseOnce():
		return Send
	case c.is(peerEOF):
		return Close
	case c.is(shut):
		return Wait
	}
	return ShutWrite
}

// nextCloseWriteAction returns the next action after CloseWrite, once the output has been sent.
func (c *Conn) nextCloseWriteAction() Action {
	if c.appendLayerCloseOnce() {
		return Send
	}
	return ShutWrite
}

// appendLayerCloseOnce makes the layer append its closing message, but only once. It reports whether there is output.
func (c *Conn) appendLayerCloseOnce() (outputPending bool) {
	if c.layer() == nil || c.extra.layerCloseSent {
		return false
	}
	c.extra.layerCloseSent = true
	c.extra.layer.SendClose(c)
	return c.out != nil
}

// CloseWrite shuts the sending direction once all output has been sent. Output posted until then is sent, too. The peer
// reads EOF and may keep sending. Later writes fail.
func (c *Conn) CloseWrite() {
	if c.is(open) && !c.is(closing|failed) {
		c.state |= closingWrite
	}
}

// isSendClosed reports whether nothing more can be sent, because the sending direction is shut or the layer has closed.
func (c *Conn) isSendClosed() bool { return c.is(shut) || c.extra != nil && c.extra.layerCloseSent }

// Retain delays an orderly close, because the handler will write more output. An orderly close follows the peer's EOF
// or a drain. Each Retain needs a Release. After EOF, a retained connection that is idle for IdleTimeout is closed.
func (c *Conn) Retain() {
	if !c.is(open) || c.is(closing|failed) {
		return
	}
	c.runtime.RetainCalls.Add(1)
	if c.ensureRare().retainCount++; c.is(peerEOF) {
		c.extra.expiry, c.lastHeard = 0, c.runtime.coarseNow()
	}
}

func (c *Conn) Release() {
	if c.extra == nil || c.extra.retainCount == 0 {
		return
	}
	if c.extra.retainCount--; c.extra.retainCount == 0 && c.is(peerEOF) && !c.is(closing) {
		c.extra.expiry = c.runtime.Now() + c.runtime.Limits.CloseTimeout
	}
	c.freeExtraIfZero()
}

// freeExtraIfZero frees the connection's rareState and connExtra if all of their fields are zero.
func (c *Conn) freeExtraIfZero() {
	switch x := c.extra; {
	case x == nil:
	case x.isZero():
		c.extra = nil
	case x.rareState.isZero():
		x.rareState = &noRareState
	}
}

func (c *Conn) handlerOrRelayDelaysClose() bool {
	if c.extra != nil && c.extra.independentDirections && !c.is(peerEOF) {
		return true
	}
	return (c.is(relayed) || c.extra != nil && c.extra.retainCount > 0) && !c.is(shut)
}

// CloseReason returns the reason why the connection closes. The connection must have begun to close.
func (c *Conn) CloseReason() error { return c.extra.closeReason }

// OnClosed records that the descriptor has been closed, and calls Closed. After OnClosed, the slot may be reused.
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
		c.runtime.logAndCountEndBeforeOpened(c)
		if o := c.ConnHandler(); o != nil {
			c.runtime.NotifyDialFailed(o, c.extra.closeReason)
		}
	case !c.extra.closedByWorker:
		c.callClosedAfterDueOpened()
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
		x.reset()
		extraPool.Put(x)
	}
	c.state, c.extra, c.userData = 0, nil, nil
}
