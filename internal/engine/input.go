package engine

// This file is the input of a connection: how it gets to the handler, and what is kept of it.

// Arrived takes input; p is valid during the call.
func (c *Conn) Arrived(p []byte) {
	n := c.host.Counters.Add(Reads, 1)
	c.host.Counters.Add(BytesIn, int64(len(p)))
	if sample := n%sampling == 0; (sample || c.host.Timing) && !c.host.OnWorkers {
		start := c.host.Now()
		c.host.SetClock(start)
		c.take(p)
		end := c.host.Now()
		c.host.SetClock(end)
		c.host.called(c, end-start, sample)
		return
	}
	c.take(p)
}

func (c *Conn) take(p []byte) {
	switch {
	case c.is(closing | failed):
		// Lingering: nobody wants it any more.
	case c.layer() != nil:
		c.passUp(p)
	default:
		c.Plain(p)
	}
	if c.is(readBeforeClose) {
		c.stillUnread()
	}
	c.endEvent()
}

// Plain takes input as the handler is to see it; p is valid during the call. Only
// such counts as a word from the peer: the first bytes of a TLS record are none.
func (c *Conn) Plain(p []byte) {
	if c.more != nil {
		c.more.partial = 0
	}
	c.heard = c.host.coarseNow()
	c.state &^= silent | allMissed
	if c.is(closing|failed|relayed) || c.host.OnWorkers || c.in != nil {
		c.plainLater(p)
	} else if rest := c.offer(p, nil); len(rest) > 0 && !c.is(closing|failed) {
		c.keep(rest)
	}
}

// plainLater is Plain for a connection whose handler is not called with p itself.
func (c *Conn) plainLater(p []byte) {
	switch {
	case c.is(closing | failed):
	case c.is(relayed):
		if c.in != nil {
			c.keep(p)
		} else {
			c.forward(p)
		}
	case c.host.OnWorkers:
		c.keep(p)
		c.state |= inputHeld
	default:
		c.host.append(c.in, p)
		c.offerBuffered(nil)
	}
}

// keep appends to the unused input.
func (c *Conn) keep(p []byte) {
	if c.in == nil {
		c.in = c.host.get(len(p))
	}
	c.host.append(c.in, p)
}

// Deliver calls the handler: with input that was held back, and to tell it when
// there is none left and the peer has ended.
func (c *Conn) Deliver() {
	c.state &^= yielded
	if c.is(relayed) {
		c.state &^= drainedPending | drainingPending
		c.flush()
		c.endEvent()
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
		c.offerBuffered(nil)
	}
	if c.is(peerEnded) && !c.is(endDelivered|inputHeld|readPaused|closing|failed) {
		c.deliverEnd()
	}
	c.endEvent()
}

// deliverEnd tells the handler that the peer has ended. What it leaves because
// the connection is paused waits for output to drain.
func (c *Conn) deliverEnd() {
	var rest []byte
	if c.in != nil {
		rest = c.in.Bytes()
	}
	used := c.callEnded(rest)
	if used > 0 && used < len(rest) && c.inputPaused() && !c.is(closing|failed) {
		c.in.skip(used)
		c.seen = 0
		c.state |= inputHeld
		return
	}
	c.state |= endDelivered
	c.dropInput()
}

// offerBuffered offers the unused input and keeps what is left. With a reason it
// is shed.
func (c *Conn) offerBuffered(shed error) {
	c.state &^= inputHeld
	if c.in == nil {
		return
	}
	rest := c.offer(c.in.Bytes(), shed)
	if c.is(closing | failed) {
		c.dropInput()
		return
	}
	if used := c.in.Len() - len(rest); used > 0 {
		c.in.skip(used)
		c.in.since = c.host.Clock() // another message begins
	}
	if c.in.Len() == 0 {
		c.dropInput()
	}
}

// offer calls the handler until it uses no more, and returns what is left. It
// offers ReadSize bytes at a time, as much as a read brings, beyond those that
// the handler has refused already: where much input has piled up, what a
// handler writes for one offer stays within bounds all the same.
func (c *Conn) offer(in []byte, shed error) []byte {
	for len(in) > 0 && !c.is(closing|failed) {
		if c.inputPaused() {
			c.state |= inputHeld
			break
		}
		part := in[:min(len(in), int(c.seen)+ReadSize)]
		used := c.callReceived(part, shed)
		switch {
		case used < 0 || used > len(part):
			c.badCount(used, len(part), shed)
		case used > 0:
			in, c.seen = in[used:], 0
		case c.inputPaused():
		case len(part) >= c.host.Limits.MaxMessage:
			c.TooLong(uint64(len(part)))
		default:
			c.seen = uint32(len(part))
			if len(part) == len(in) {
				return in
			}
		}
	}
	return in
}

// inputPaused says whether no input is offered now.
func (c *Conn) inputPaused() bool { return c.pausesReading() || c.is(readPaused|yielded) }

// pausesReading says whether reading pauses until output has been sent: from above
// HighWater until not above LowWater. With ReadOn it never does, but Drained
// is called all the same.
func (c *Conn) pausesReading() bool {
	if !c.is(overHighWater|relayed) && c.Pending()+c.direct() > c.host.Limits.HighWater {
		c.state |= overHighWater
		c.host.Counters.Add(Paused, 1)
	}
	return c.is(overHighWater) && !c.host.ReadOn && !c.ReadsOn()
}

// checkLowWater ends that when it is time, and has a partner go on.
func (c *Conn) checkLowWater() {
	if c.remote() != nil {
		c.sentRemote()
	}
	if !c.is(overHighWater) || c.Pending() > c.host.Limits.LowWater {
		return
	}
	c.resumeReading()
	if c.is(relayed) {
		c.resumePartner()
		return
	}
	if (c.host.Drained != nil || c.is(ownHandler)) && !c.is(closing|failed) {
		c.state |= drainedPending
	}
}

// resumeReading ends the pause. The peer's times begin anew: nobody has read meanwhile.
func (c *Conn) resumeReading() {
	c.state &^= overHighWater
	c.host.Counters.Add(Paused, -1)
	c.restartPeerTimes()
}

// restartPeerTimes has the peer's limits of time begin now.
func (c *Conn) restartPeerTimes() {
	c.heard = c.host.coarseNow()
	if c.in != nil {
		c.in.since = c.host.Clock()
	}
	if c.more != nil && c.more.heldSince > 0 {
		c.more.heldSince = c.host.Clock()
	}
}
