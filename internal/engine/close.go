package engine

// OnEOF records that the peer has sent EOF. From then on, all output must be sent within Limits.CloseTimeout. This
// limit does not apply to a connection that is relayed or that the handler has retained; see Retain.
func (c *Conn) OnEOF() {
	if l := c.layer(); l != nil && !c.is(peerEOF|closing|failed) {
		c.closeOrAbortIfLayerError(l.OnEOF(c))
	}
	c.MarkPeerEOFAndForwardOrStartTimeout()
}

// MarkPeerEOFAndForwardOrStartTimeout has the same effect as OnEOF, but does not call the layer's OnEOF. Layers call
// this method when the peer has ended the input by a message of the layer's protocol, such as the close_notify alert of
// TLS.
func (c *Conn) MarkPeerEOFAndForwardOrStartTimeout() {
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

// Abort closes the connection immediately with the given close reason, and discards unsent output. If the connection is
// already closing and has sent all output, the earlier close reason stays.
func (c *Conn) Abort(reason error) {
	if c.is(closing) && c.UnsentAndDroppedBytes() == 0 {
		c.state |= failed
		return
	}
	c.abortWith(reason)
}

// maxDrainReads limits how many reads with input can delay the close of a connection during a shutdown.
const maxDrainReads = 64

// BeginShutdownDrain makes the connection close as soon as the connection is idle, because the engine is shutting down.
// The handler's Draining is called first. Input that has already arrived is still handled.
func (c *Conn) BeginShutdownDrain() {
	if c.is(draining | closing) {
		return
	}
	if c.callbacks().Draining != nil || c.is(ownHandler) {
		c.state |= drainingPending
	}
	c.state |= draining | finalReadPending
	c.ensureRare().drainReadsLeft = maxDrainReads
}

// clearFinalReadUnlessNeeded is called after a read that has found input. The flag finalReadPending means that the
// connection must be read again before it may close. clearFinalReadUnlessNeeded clears this flag, unless one of the
// following applies:
//
//   - A time limit is exceeded.
//   - The engine shuts down, and the shutdown has not yet made maxDrainReads such reads from the connection.
//   - The engine does not shut down, and buffered input waits for the handler.
func (c *Conn) clearFinalReadUnlessNeeded() {
	switch {
	case c.is(draining) && c.extra != nil && c.extra.drainReadsLeft > 0:
		c.extra.drainReadsLeft--
	case c.is(inputHeld) && !c.is(draining): // a worker must handle the input first
	default:
		if reason, _ := c.exceededTimeLimit(c.runtime.Now()); reason == nil {
			c.state &^= finalReadPending
		}
	}
}

// CloseIfTimedOutAfterEmptyRead is called after a read that has found no input or has emptied the socket. The flag
// finalReadPending means that a timeout or a shutdown has waited for this read. If the flag is not set,
// CloseIfTimedOutAfterEmptyRead has no effect. Otherwise, it clears the flag. If a time limit is still exceeded, it
// also closes the connection.
//
// While buffered input waits for the handler, CloseIfTimedOutAfterEmptyRead has an effect only during a shutdown.
func (c *Conn) CloseIfTimedOutAfterEmptyRead() {
	if !c.is(finalReadPending) || c.is(inputHeld) && !c.is(draining) {
		return
	}
	c.state &^= finalReadPending
	if reason, _ := c.exceededTimeLimit(c.runtime.Now()); reason != nil {
		c.closeOrAbortByTimeoutKind(reason)
	}
}

func (c *Conn) abortWith(reason error) {
	if c.is(closing) && !c.is(failed) {
		c.logCloseIfByLimit(reason, 0) // logs the limit that has ended the orderly close
	}
	c.CloseWith(reason)
	c.ensureRare().closeReason = reason
	c.state |= failed
}

// CloseWith starts to close the connection with the given close reason. Output written so far is sent, and the handler
// gets no more input. If the connection is already closing, CloseWith has no effect.
func (c *Conn) CloseWith(reason error) {
	if c.is(closing) {
		return
	}
	c.logCloseIfByLimit(reason, 0)
	c.invalidateRefsAndStartClosing(reason)
}

// CloseWaitingForPeerEOF is like CloseWith, but does not shut down the sending direction before the peer has sent EOF.
// If the peer does not send EOF within Limits.CloseTimeout, the connection is closed anyway.
func (c *Conn) CloseWaitingForPeerEOF(reason error) {
	if !c.is(closing | shut) {
		c.CloseWith(reason)
		c.ensureRare().peerClosesFirst = true
	}
}

func (c *Conn) invalidateRefsAndStartClosing(reason error) {
	g := c.refLock()
	g.Lock()
	waiting := c.refState.startNextGeneration()
	g.Unlock()
	if waiting {
		c.runtime.sendWaiters.signalSpaceFreed(c)
	}
	c.enterClosingStateWithPartner(reason)
}

func (c *Conn) closeIfNothingPosted(reason error) (closeStarted bool) {
	g := c.refLock()
	g.Lock()
	retired := c.refState.advanceGenerationIfNonePosted()
	g.Unlock()
	if !retired {
		return false
	}
	c.enterClosingStateWithPartner(reason)
	return true
}

func (c *Conn) enterClosingStateWithPartner(reason error) {
	c.state |= closing
	c.runtime.Counters.Add(Closing, 1)
	x := c.ensureExtra()
	c.ensureRare().closeReason = reason
	if c.is(relayed) {
		c.closePartner(reason)
	}
	switch now := c.runtime.Now(); {
	case c.is(peerEOF) && x.expiry > 0: // the timeout has started at EOF
	case c.is(shut):
		x.expiry = now + c.runtime.Limits.Linger
	default:
		x.expiry = now + c.runtime.Limits.CloseTimeout
	}
}

func (c *Conn) advanceClosing() Action {
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

// advanceCloseWrite returns the driver's next action after CloseWrite. All output must have been sent.
func (c *Conn) advanceCloseWrite() Action {
	if c.appendLayerCloseOnce() {
		return Send
	}
	return ShutWrite
}

// appendLayerCloseOnce makes the layer append its closing message to the output. Further calls have no effect.
// appended reports whether there is output to send.
func (c *Conn) appendLayerCloseOnce() (appended bool) {
	if c.layer() == nil || c.extra.layerCloseSent {
		return false
	}
	c.extra.layerCloseSent = true
	c.extra.layer.SendClose(c)
	return c.out != nil
}

// CloseWrite shuts down the sending direction as soon as all output has been sent. The output includes messages that
// were posted through a Ref. After CloseWrite, calls of Write fail. The peer reads EOF, but may keep sending.
func (c *Conn) CloseWrite() {
	if c.is(open) && !c.is(closing|failed) {
		c.state |= closingWrite
	}
}

func (c *Conn) isSendClosed() bool { return c.is(shut) || c.extra != nil && c.extra.layerCloseSent }

// Retain keeps the connection open after the peer's EOF or during a shutdown, so that the handler can write more
// output. The handler must call Release once for each call of Retain. After the peer's EOF, a retained connection is
// closed if it is idle for Limits.IdleTimeout.
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

// freeExtraIfZero frees c.extra if all of its fields, including those of its rareState, are zero. If only the fields of
// the rareState are zero, it frees only the rareState.
func (c *Conn) freeExtraIfZero() {
	switch x := c.extra; {
	case x == nil:
	case x.isZero():
		x.reset()
		extraPool.Put(x)
		c.extra = nil
	case x.rareState.isZero():
		x.recycleRare()
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

// OnClosed records that the descriptor has been closed, and resets c, so that its slot may be reused. It calls the
// handler's Closed, unless the connection has ended before Opened or a worker calls Closed.
func (c *Conn) OnClosed() {
	c.dropInput()
	c.dropOutput()
	if c.hasPendingLayer() {
		c.cancelPendingLayerAndHandleDeferred()
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
	if !c.is(handshaking) && c.extra.closeReason != ErrHandedOver { // ConnsExported counts exports
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
	c.releaseListenerAndSourceSlots() // before the counters change, so that the slots are then free
	n.Add(Closing, -1)
	n.Add(Open, -1)
	if x := c.extra; x != nil {
		x.reset()
		extraPool.Put(x)
	}
	c.state, c.extra, c.userData = 0, nil, nil
}
