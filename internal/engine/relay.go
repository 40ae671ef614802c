package engine

import (
	"errors"
	"sync"
	"sync/atomic"
)

// This file is how two connections are joined.
//
// Connections of one loop, which have a Loop, know each other by slot, which takes the
// place of seen: a relay needs no memory beside them. What one receives is written to
// the other at once. When that has more than HighWater unsent, the first is not read from
// until it has come down to LowWater. The two begin to close in one step,
// so that neither slot outlives the relay.
//
// Connections of two owners know each other by Ref, and all goes by mail. A connection
// that is ahead of its partner by more than HighWater asks for a grant and is not read
// from until that has come: the partner gives it when its output has come down to LowWater. Mail
// keeps the order, so that the end of a direction comes behind its bytes.
//
// Where any goroutine may use a socket (Host.Pass), a connection sends to its partner's
// directly while nothing else waits to be sent there: see bypass. What the kernel does not
// take goes by mail, and then the connection is not read from until all of that is sent.
//
// One that asks for a relay knows its partner and is not read from until the two are
// joined: mail calls acceptRelay of the other one, on its owner. If that belongs to a second owner it is
// joined then, and mail has the first one joined before any byte comes. What relays post
// beside bytes is a few pieces of mail for each connection at a time, which have room in
// every mailbox (Request.alwaysFits): a connection always learns of its partner's end.

// Relay joins two connections. It is for the owner of one of them.
func (c *Conn) Relay(to Ref) error {
	switch {
	case c.is(closing|failed|closingWrite) || !c.is(open) || to.Closed():
		return ErrClosed
	case to.c == c || c.inputTaken():
		return ErrBadUse
	}
	from := c.Ref()
	err := to.post(Request{Kind: MailDo, Shared: from.relayRequest()})
	if err == nil {
		c.state |= readPaused
		c.extra().remote = &remote{partner: to}
	}
	return err
}

// Relayed says whether the connection is joined with another one.
func (c *Conn) Relayed() bool { return c.is(relayed) }

// inputTaken says whether the input is for somebody else than the handler already: it is in
// a relay, or has asked for one, for a layer, or to be given up.
func (c *Conn) inputTaken() bool {
	return c.is(relayed) || c.more != nil && (c.remote() != nil || c.upgrades() || c.detaches())
}

// joinable says whether the connection can be joined with another one.
func (c *Conn) joinable(o Ref) bool {
	switch {
	case c.is(relayed | closingWrite):
		return false
	case c.inputTaken():
		return c.remote() != nil && c.remote().partner == o
	}
	return true
}

// relayRequest is what the connection has done on the one that it wants to be joined with.
func (r Ref) relayRequest() *Shared {
	return &Shared{Do: func(o *Conn) { o.acceptRelay(r) }, Lost: func() { r.closeWith(ErrClosed) }}
}

// acceptRelay joins the connection with one that has asked for that. Where workers call handlers,
// that one may be with one of them: then it asks again when it is back.
func (c *Conn) acceptRelay(from Ref) {
	o, here := from.On(c.host), c.Ref()
	near := c.host.Loop != nil && o != nil
	switch {
	case c.joinedTo(from): // both have asked
	case !c.joinable(from):
		from.closeWith(ErrBadUse)
	case from.Closed():
		c.CloseWith(ErrClosed)
	case !near:
		var in, out *bypass
		if c.host.Pass != nil {
			in, out = new(bypass), new(bypass)
		}
		from.tellElse(func(o *Conn) { o.joinTo(here, out, in) }, func() { here.closeWith(ErrClosed) })
		c.join(&remote{partner: from, in: in, out: out})
	case !c.host.Loop.HasConn(o):
		again := from.relayRequest()
		from.tellElse(func(*Conn) { here.tellElse(again.Do, again.Lost) }, func() { here.closeWith(ErrClosed) })
	case !o.joinable(here):
		o.CloseWith(ErrBadUse)
		c.host.Loop.SettleLater(o)
	default:
		c.join(nil)
		o.join(nil)
		c.seen, o.seen = o.slot, c.slot
		c.host.Loop.SettleLater(c)
		c.host.Loop.SettleLater(o)
	}
}

// joinedTo says whether the connection is in a relay with another one.
func (c *Conn) joinedTo(o Ref) bool {
	if !c.is(relayed) {
		return false
	}
	if near := c.joined(); near != nil {
		return near == o.On(c.host)
	}
	return c.remote().partner == o
}

// joinTo joins the connection to one of another owner, which is joined already.
func (c *Conn) joinTo(o Ref, in, out *bypass) {
	switch {
	case c.joinedTo(o): // both have asked
	case c.joinable(o):
		c.join(&remote{partner: o, in: in, out: out})
	default:
		o.closeWith(ErrBadUse)
	}
}

// join begins a relay, on either side; r is nil where the partner has the same owner.
// What was kept is forwarded by Deliver.
func (c *Conn) join(r *remote) {
	c.state |= relayed
	c.state &^= silent | endDelivered | readPaused | inputHeld | drainedPending | allMissed
	if c.is(overHighWater) {
		c.resumeReading()
	}
	if c.restartPeerTimes(); c.is(peerEnded) {
		c.more.due = 0
	}
	if r != nil {
		c.extra().remote = r
		c.openBypass()
	} else if c.more != nil {
		c.more.remote = nil // it has asked
		c.shrink()
	}
}

// tell posts something to do on a partner.
func (r Ref) tell(do func(*Conn)) { r.tellElse(do, nil) }

// tellElse is tell with what is done instead if the partner is closing.
func (r Ref) tellElse(do func(*Conn), lost func()) {
	err := r.post(Request{Kind: MailDo, alwaysFits: true, Shared: &Shared{Do: do, Lost: lost}})
	if err != nil && lost != nil {
		lost()
	}
}

// closeWith has a partner closed.
func (r Ref) closeWith(why error) { r.tell(func(c *Conn) { c.CloseWith(why) }) }

// remote is what a connection has to know of its partner with another owner.
type remote struct {
	partner     Ref
	ahead       int  // bytes that were mailed since the last grant
	grantWanted bool // the partner waits for a grant
	// in is how the partner gets past this connection's owner, out how this one gets
	// past the partner's; nil where descriptors are for their owners only.
	in, out *bypass
}

// bypass has a connection's socket sent to by the partner, so that nothing is copied, and
// nobody woken. The lock is held for as long as that takes, which never waits.
type bypass struct {
	mu   sync.Mutex
	open bool          // the connection owes nothing, and has no layer
	used atomic.Uint32 // when it was last used, as a moment
}

// remote is nil for a connection whose partner has the same owner, or that has none.
func (c *Conn) remote() *remote {
	if c.more == nil {
		return nil
	}
	return c.more.remote
}

func (c *Conn) openBypass() {
	if in := c.more.remote.in; in != nil && !c.hasOutput() && c.layer() == nil {
		in.mu.Lock()
		in.open = true
		in.mu.Unlock()
	}
}

// closeBypass is for a connection that is about to owe something.
func (c *Conn) closeBypass() {
	if r := c.remote(); r != nil && r.in != nil {
		r.in.mu.Lock()
		r.in.open = false
		r.in.mu.Unlock()
	}
}

// noteBypassUse counts what came by a bypass as heard.
func (c *Conn) noteBypassUse() {
	if r := c.remote(); r != nil && r.in != nil {
		if used := coarseTime(r.in.used.Load()); used != 0 && int32(used-c.heard) > 0 {
			c.heard = used
		}
	}
}

// HasBypass says whether Bypass may call send at times.
func (c *Conn) HasBypass() bool {
	r := c.remote()
	return r != nil && r.out != nil
}

// Bypass calls send to have the partner's socket sent to, if it may be now, and says
// whether it was called. send does not wait.
func (c *Conn) Bypass(send func(o *Conn)) bool {
	if !c.HasBypass() || c.in != nil || c.is(closing|failed) {
		return false
	}
	r := c.remote()
	r.out.mu.Lock()
	defer r.out.mu.Unlock()
	if !r.out.open || r.partner.c.mark.posted() != 0 { // that goes first
		return false
	}
	r.out.used.Store(uint32(c.host.coarseNow()))
	send(r.partner.c)
	return true
}

// sentRemote is for a connection that has sent something.
func (c *Conn) sentRemote() {
	c.openBypass()
	if c.more.remote.grantWanted {
		c.grant()
	}
}

// flush forwards what was kept, and then the end.
func (c *Conn) flush() {
	if in := c.in; in != nil {
		c.in = nil
		c.forward(in.Bytes())
		c.host.put(in)
	}
	if c.is(peerEnded) && !c.is(closing|failed) {
		c.relayEnd()
	}
}

// joined is the other connection of one loop, nil if it has another owner. It is not
// asked for any more once the two have begun to close: then a worker may have it, or its
// slot be another one's.
func (c *Conn) joined() *Conn {
	if c.remote() != nil {
		return nil
	}
	return c.host.Loop.Conn(c.seen)
}

// forward gives the other connection what this one has received.
func (c *Conn) forward(p []byte) {
	c.heard = c.host.coarseNow()
	if o := c.joined(); o != nil {
		o.relay(p)
		if o.is(overHighWater) {
			c.state |= readPaused
		}
		c.host.Loop.SettleLater(o)
		return
	}
	c.forwardRemote(p)
}

func (c *Conn) forwardRemote(p []byte) {
	r := c.more.remote
	c.Bypass(func(o *Conn) {
		n := c.host.Pass(o, p)
		if p = p[n:]; n > 0 {
			c.host.Counters.Add(Writes, 1)
			c.host.Counters.Add(BytesOut, int64(n))
		}
	})
	if len(p) == 0 {
		return
	}
	for len(p) > 0 && !c.is(closing|failed) {
		n := min(len(p), c.host.Limits.MaxUnsent)
		switch err := r.partner.Send(p[:n]); {
		case err == nil:
			r.ahead += n
			p = p[n:]
		case errors.Is(err, ErrFull):
			c.keep(p)
			r.ahead = max(r.ahead, c.host.Limits.HighWater+1)
			p = nil
		default: // it is closing, and mail about that is on its way
			return
		}
	}
	if (r.ahead > c.host.Limits.HighWater || r.out != nil) && !c.is(readPaused) {
		c.state |= readPaused
		r.partner.tell(func(o *Conn) {
			if r := o.remote(); r != nil {
				r.grantWanted = true
				o.grant()
			}
		})
	}
}

// relay writes what the other connection has received.
func (c *Conn) relay(p []byte) {
	if c.is(closing | failed | closingWrite) {
		return
	}
	c.heard = c.host.coarseNow()
	h := c.host
	if !c.hasOutput() && c.layer() == nil && h.Direct != nil && len(p) >= h.DirectSize {
		n := h.Direct(c, p, nil)
		if n > 0 {
			h.Counters.Add(Writes, 1)
			h.Counters.Add(BytesOut, int64(n))
		}
		p = p[n:]
	}
	c.passDown(p)
	if !c.is(overHighWater) && c.Pending() > h.Limits.HighWater {
		c.state |= overHighWater
		h.Counters.Add(Paused, 1)
	}
}

// SpliceTo is the connection to which what this one receives may be moved without being
// looked at: nothing waits before it, and neither has a layer. It is nil if there is none.
func (c *Conn) SpliceTo() *Conn {
	if !c.is(relayed) || c.is(closing|failed) || c.in != nil || c.layer() != nil {
		return nil
	}
	o := c.joined()
	if o == nil || o.hasOutput() || o.layer() != nil || o.is(closing|failed|closingWrite) {
		return nil
	}
	return o
}

// Spliced counts n bytes that were moved so, or in a Bypass.
func (c *Conn) Spliced(n int) {
	c.heard = c.host.coarseNow()
	if o := c.joined(); o != nil {
		o.heard = c.heard
	}
	if n > 0 {
		c.host.Counters.Add(Reads, 1)
		c.host.Counters.Add(BytesIn, int64(n))
		c.host.Counters.Add(Writes, 1)
		c.host.Counters.Add(BytesOut, int64(n))
	}
	if c.is(readBeforeClose) {
		c.stillUnread()
	}
}

// resumePartner has the other connection read again, when this one is below LowWater.
func (c *Conn) resumePartner() {
	if c.is(closing | failed) {
		return
	}
	if o := c.joined(); o != nil {
		o.listen(true)
		c.host.Loop.SettleLater(o)
	}
}

// grant has the partner go on that has asked, once this one owes little.
func (c *Conn) grant() {
	r, most := c.more.remote, c.host.Limits.LowWater
	if r.in != nil {
		most = 0 // more goes by the bypass
	}
	if c.is(closing|failed) || c.Pending() > most {
		return
	}
	r.grantWanted = false
	r.partner.tell(func(o *Conn) {
		if r := o.remote(); r != nil {
			r.ahead = 0
			o.listen(true)
		}
	})
}

// relayEnd passes on that the peer has ended, behind all it has sent.
func (c *Conn) relayEnd() {
	if c.in != nil || c.is(endDelivered) {
		return
	}
	c.state |= endDelivered
	c.heard = c.host.coarseNow()
	if o := c.joined(); o != nil {
		o.CloseWrite()
		c.host.Loop.SettleLater(o)
		return
	}
	c.more.remote.partner.tell((*Conn).CloseWrite)
}

// relayClose passes on that the connection closes.
func (c *Conn) relayClose(why error) {
	if o := c.joined(); o != nil {
		if !o.is(closing) {
			o.CloseWith(why)
			c.host.Loop.SettleLater(o)
		}
		return
	}
	c.more.remote.partner.closeWith(why)
}
