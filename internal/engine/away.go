package engine

// This file is a worker's part of a connection.

// Part is for a connection whose Closed a worker is to call: Run does that, and
// Finish then does not. Its buffers are of no more use.
func (c *Conn) Part() {
	c.dropInput()
	c.dropOutput()
	c.state |= parting
}

// Parted says whether Part has been called.
func (c *Conn) Parted() bool { return c.is(parting) }

// Run is a worker's part: the handler's calls that are due. The worker owns the
// connection until Returned has been called.
func (c *Conn) Run() {
	start, times, place := c.host.Now(), c.host.Times, int32(0)
	if times != nil {
		place = times.begin()
	}
	if c.is(parting) {
		c.callClosed()
	} else {
		c.Deliver()
	}
	took := c.host.Now() - start
	if times != nil {
		times.end(place, took)
	}
	c.host.Counters.Called(took)
	c.host.judge(c, took)
	c.host.Returned(c)
}

// HandedOver says that the connection waits for a worker, and TakenBack that it is
// its owner's again: in between nobody has listened to the peer, or sent to it.
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
		c.heard = c.host.moment()
	}
	for _, b := range []*Buffer{c.in, c.out} {
		if b != nil && b.handed > 0 {
			b.since, b.handed = min(b.since+now-b.handed, now), 0
		}
	}
}
