package engine

// This file passes input to the handler and buffers unused input.

// OnRead handles received bytes. p is valid during the call.
func (c *Conn) OnRead(p []byte) {
	n := c.runtime.Counters.Add(Reads, 1)
	c.runtime.Counters.Add(BytesIn, int64(len(p)))
	if sample := n%timingSampleRate == 0; (sample || c.runtime.TimeAllCalls) && !c.runtime.OnWorkers {
		start := c.runtime.Now()
		c.runtime.SetClock(start)
		c.feedLayerOrHandlerUnlessClosing(p)
		end := c.runtime.Now()
		c.runtime.SetClock(end)
		c.runtime.recordTimeAndExtendTimeouts(c, end-start, sample)
		return
	}
	c.feedLayerOrHandlerUnlessClosing(p)
}

func (c *Conn) feedLayerOrHandlerUnlessClosing(p []byte) {
	switch {
	case c.is(closing | failed):
		// Lingering: input is discarded.
	case c.layer() != nil:
		c.feedLayer(p)
	default:
		c.OnPlaintext(p)
	}
	if c.is(readBeforeClose) {
		c.cancelReadBeforeCloseUnlessMore()
	}
	c.startPendingLayerAndUpdatePause()
}

// OnPlaintext handles input for the handler. p is valid during the call. A peer counts as silent until such input
// arrives. The first bytes of a TLS record, for example, are not enough.
func (c *Conn) OnPlaintext(p []byte) {
	if c.extra != nil {
		c.extra.layerPartialSince = 0
	}
	c.lastHeard = c.runtime.coarseNow()
	c.state &^= neverHeard | unansweredMask
	if c.is(closing|failed|relayed) || c.runtime.OnWorkers || c.in != nil {
		c.relayInputOrPassToHandler(p)
	} else if rest := c.feedOrShedInput(p, nil); len(rest) > 0 && !c.is(closing|failed) {
		c.bufferUnusedInput(rest)
	}
}

// relayInputOrPassToHandler relays plaintext or passes it to the handler. If neither is possible yet, it buffers p.
func (c *Conn) relayInputOrPassToHandler(p []byte) {
	switch {
	case c.is(closing | failed):
	case c.is(relayed):
		if c.in != nil {
			c.bufferUnusedInput(p)
		} else {
			c.forwardToPartner(p)
		}
	case c.runtime.OnWorkers:
		c.bufferUnusedInput(p)
		c.state |= inputHeld
	default:
		c.runtime.appendToInputBuffer(c.in, p)
		c.feedOrShedBuffered(nil)
	}
}

func (c *Conn) bufferUnusedInput(p []byte) {
	if c.in == nil {
		c.in = c.runtime.allocCountedBuffer(len(p))
	}
	c.runtime.appendToInputBuffer(c.in, p)
}

// MakeDeferredHandlerCalls makes the due calls of Opened, Drained, Draining, Received (with buffered input) and Ended.
func (c *Conn) MakeDeferredHandlerCalls() {
	c.state &^= yielded
	if c.is(relayed) {
		c.state &^= drainedPending | drainingPending
		c.forwardBufferedInputAndEOF()
		c.startPendingLayerAndUpdatePause()
		return
	}
	if c.is(openPending) {
		c.state &^= openPending
		c.callOpened()
	}
	if c.is(drainedPending) {
		c.state &^= drainedPending
		c.callDrained()
	}
	if c.is(drainingPending) && !c.is(closing|failed) {
		c.callDraining()
	}
	c.state &^= drainingPending
	if c.is(inputHeld) {
		c.feedOrShedBuffered(nil)
	}
	if c.is(peerEOF) && !c.is(eofDelivered|inputHeld|readPaused|closing|failed) {
		c.callEndedWithUnusedInput()
	}
	c.startPendingLayerAndUpdatePause()
}

// callEndedWithUnusedInput calls Ended with the unused input. If the connection is paused, unused input is kept.
func (c *Conn) callEndedWithUnusedInput() {
	var rest []byte
	if c.in != nil {
		rest = c.in.Bytes()
	}
	used := c.callEnded(rest)
	if used > 0 && used < len(rest) && c.isInputPaused() && !c.is(closing|failed) {
		c.in.discardFrontBytes(used)
		c.refusedBytes = 0
		c.state |= inputHeld
		return
	}
	c.state |= eofDelivered
	c.dropInput()
}

// feedOrShedBuffered passes buffered input to Received or, if shedReason is not nil, to Shed. It keeps unused input.
func (c *Conn) feedOrShedBuffered(shedReason error) {
	c.state &^= inputHeld
	if c.in == nil {
		return
	}
	rest := c.feedOrShedInput(c.in.Bytes(), shedReason)
	if c.is(closing | failed) {
		c.dropInput()
		return
	}
	if used := c.in.Len() - len(rest); used > 0 {
		c.in.discardFrontBytes(used)
		c.in.waitingSince = c.runtime.Clock() // a new message begins
	}
	if c.in.Len() == 0 {
		c.dropInput()
	}
}

// feedOrShedInput calls Received or, if shedReason is not nil, Shed, until no more input is used. It returns unused
// input. Each call gets the bytes already refused and at most ReadSize more, which limits what a call writes.
func (c *Conn) feedOrShedInput(in []byte, shedReason error) (unused []byte) {
	for len(in) > 0 && !c.is(closing|failed) {
		if c.isInputPaused() {
			c.state |= inputHeld
			break
		}
		part := in[:min(len(in), int(c.refusedBytes)+ReadSize)]
		used := c.callReceivedOrShed(part, shedReason)
		switch {
		case used < 0 || used > len(part):
			c.abortForInvalidUsedCount(used, len(part), shedReason)
		case used > 0:
			in, c.refusedBytes = in[used:], 0
		case c.isInputPaused():
		case len(part) >= c.runtime.Limits.MaxMessage:
			c.CloseMessageTooLong(uint64(len(part)))
		default:
			c.refusedBytes = uint32(len(part))
			if len(part) == len(in) {
				return in
			}
		}
	}
	return in
}

// isInputPaused reports whether input must not be passed to the handler now.
func (c *Conn) isInputPaused() bool { return c.pauseReadingAtHighWater() || c.is(readPaused|yielded) }

// pauseReadingAtHighWater pauses reading if more than HighWater bytes are unsent. It reports whether reading is paused;
// a pause ends at LowWater. With IgnoreHighWater it returns false, but Drained is called as usual.
func (c *Conn) pauseReadingAtHighWater() (isPaused bool) {
	if !c.is(overHighWater|relayed) && c.UnsentOrDroppedBytes()+c.directSentInEvent() > c.runtime.Limits.HighWater {
		c.state |= overHighWater
		c.runtime.Counters.Add(Paused, 1)
	}
	return c.is(overHighWater) && !c.runtime.IgnoreHighWater && !c.ReadsDespiteUnsentOutput()
}

// resumeAndScheduleDrainedIfLow ends the pause if at most LowWater bytes are unsent. Drained is then due or, in a
// relay, the partner is read again.
func (c *Conn) resumeAndScheduleDrainedIfLow() {
	if c.remotePartner() != nil {
		c.reopenFastPathAndResumePartner()
	}
	if !c.is(overHighWater) || c.UnsentOrDroppedBytes() > c.runtime.Limits.LowWater {
		return
	}
	c.endHighWaterPause()
	if c.is(relayed) {
		c.resumeLocalPartnerReading()
		return
	}
	if (c.runtime.Drained != nil || c.is(ownHandler)) && !c.is(closing|failed) {
		c.state |= drainedPending
	}
}

// endHighWaterPause ends the pause. The peer's timeouts restart, because nothing was read during the pause.
func (c *Conn) endHighWaterPause() {
	c.state &^= overHighWater
	c.runtime.Counters.Add(Paused, -1)
	c.restartPeerTimeouts()
}

func (c *Conn) restartPeerTimeouts() {
	c.lastHeard = c.runtime.coarseNow()
	if c.in != nil {
		c.in.waitingSince = c.runtime.Clock()
	}
	if c.extra != nil && c.extra.handlerPartialSince > 0 {
		c.extra.handlerPartialSince = c.runtime.Clock()
	}
}
