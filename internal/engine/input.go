package engine

// This file is the input of a connection: how it gets to the handler, and what is kept of it.

// Arrived takes input; p is valid during the call.
func (c *Conn) Arrived(p []byte) {
	n := c.host.Counters.Add(Reads, 1)
	c.host.Counters.Add(BytesIn, int64(len(p)))
	if sample := n%sampling == 0; (sample || c.host.Timing) && !c.host.Away {
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
	if c.is(unread) {
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
	c.heard = c.host.moment()
	c.state &^= silent | allMissed
	switch {
	case c.is(closing | failed):
	case c.is(relayed):
		if c.in != nil {
			c.keep(p)
		} else {
			c.forward(p)
		}
	case c.host.Away:
		c.keep(p)
		c.state |= held
	case c.in != nil:
		c.host.append(c.in, p)
		c.offerBuffered(nil)
	default:
		if rest := c.offer(p, nil); len(rest) > 0 && !c.is(closing|failed) {
			c.keep(rest)
		}
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
	if c.is(relayed) {
		c.state &^= relieved | warned
		c.flush()
		c.endEvent()
		return
	}
	if c.is(fresh) {
		c.state &^= fresh
		c.callOpened()
	}
	if c.is(relieved) {
		c.state &^= relieved
		c.callDrained()
	}
	if c.is(warned) && !c.is(closing|failed) {
		c.callDraining()
	}
	c.state &^= warned
	if c.is(held) {
		c.offerBuffered(nil)
	}
	if c.is(gone) && !c.is(ended|held|deaf|closing|failed) {
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
	if used > 0 && used < len(rest) && c.waits() && !c.is(closing|failed) {
		c.in.skip(used)
		c.seen = 0
		c.state |= held
		return
	}
	c.state |= ended
	c.dropInput()
}

// offerBuffered offers the unused input and keeps what is left. With a reason it
// is shed.
func (c *Conn) offerBuffered(shed error) {
	c.state &^= held
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
		if c.waits() {
			c.state |= held
			break
		}
		part := in[:min(len(in), int(c.seen)+ReadSize)]
		used := c.callReceived(part, shed)
		switch {
		case used < 0 || used > len(part):
			c.fail(ErrBadUse)
		case used > 0:
			in, c.seen = in[used:], 0
		case c.waits():
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

// waits says whether no input is offered now.
func (c *Conn) waits() bool { return c.owesMuch() || c.is(deaf) }

// owesMuch says whether reading pauses until output has been sent: from above
// HighWater until not above LowWater. With ReadOn it never does, but the handler
// hears of the latter all the same.
func (c *Conn) owesMuch() bool {
	if !c.is(choked|relayed) && c.Pending()+c.direct() > c.host.Limits.HighWater {
		c.state |= choked
		c.host.Counters.Add(Paused, 1)
	}
	return c.is(choked) && !c.host.ReadOn && !c.ReadsOn()
}

// relieve ends that when it is time, and has a partner go on.
func (c *Conn) relieve() {
	if c.remote() != nil {
		c.sentRemote()
	}
	if !c.is(choked) || c.Pending() > c.host.Limits.LowWater {
		return
	}
	c.unchoke()
	if c.is(relayed) {
		c.goOn()
		return
	}
	if (c.host.Drained != nil || c.is(own)) && !c.is(closing|failed) {
		c.state |= relieved
	}
}

// unchoke goes on with reading. The peer's times begin anew: so far nobody has
// listened.
func (c *Conn) unchoke() {
	c.state &^= choked
	c.host.Counters.Add(Paused, -1)
	c.attentive()
}

// attentive has the peer's times begin now.
func (c *Conn) attentive() {
	c.heard = c.host.moment()
	if c.in != nil {
		c.in.since = c.host.Clock()
	}
}
