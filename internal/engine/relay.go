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
	case c.is(closing|failed|closingWrite) || !c.is(open) || to.IsClosed():
		return ErrClosed
	case to.c == c || c.isInputTaken():
		return ErrBadUse
	}
	from := c.Ref()
	err := to.post(Request{Kind: RequestDo, Shared: from.newRelayRequest()})
	if err == nil {
		c.state |= readPaused
		c.ensureExtra().remotePartner = &remotePartner{ref: to}
	}
	return err
}

// IsRelayed says whether the connection is joined with another one.
func (c *Conn) IsRelayed() bool { return c.is(relayed) }

// isInputTaken says whether the input is for somebody else than the handler already: it is in
// a relay, or has asked for one, for a layer, or to be given up.
func (c *Conn) isInputTaken() bool {
	return c.is(relayed) || c.extra != nil && (c.remotePartner() != nil || c.hasPendingLayer() || c.isDetaching())
}

// canJoin says whether the connection can be joined with another one.
func (c *Conn) canJoin(partner Ref) bool {
	switch {
	case c.is(relayed | closingWrite):
		return false
	case c.isInputTaken():
		return c.remotePartner() != nil && c.remotePartner().ref == partner
	}
	return true
}

// newRelayRequest is what the connection has done on the one that it wants to be joined with.
func (r Ref) newRelayRequest() *Shared {
	return &Shared{Do: func(o *Conn) { o.acceptRelay(r) }, OnLost: func() { r.postCloseWith(ErrClosed) }}
}

// acceptRelay joins the connection with one that has asked for that. Where workers call handlers,
// that one may be with one of them: then it asks again when it is back.
func (c *Conn) acceptRelay(from Ref) {
	o, here := from.ConnOwnedBy(c.runtime), c.Ref()
	near := c.runtime.Loop != nil && o != nil
	switch {
	case c.isJoinedTo(from): // both have asked
	case !c.canJoin(from):
		from.postCloseWith(ErrBadUse)
	case from.IsClosed():
		c.CloseWith(ErrClosed)
	case !near:
		var in, out *fastPath
		if c.runtime.SendToPartner != nil {
			in, out = new(fastPath), new(fastPath)
		}
		from.postDoOrElse(func(o *Conn) { o.joinRemote(here, out, in) }, func() { here.postCloseWith(ErrClosed) })
		c.enterRelay(&remotePartner{ref: from, incoming: in, outgoing: out})
	case !c.runtime.Loop.OwnsConn(o):
		again := from.newRelayRequest()
		from.postDoOrElse(func(*Conn) { here.postDoOrElse(again.Do, again.OnLost) }, func() { here.postCloseWith(ErrClosed) })
	case !o.canJoin(here):
		o.CloseWith(ErrBadUse)
		c.runtime.Loop.SettleLater(o)
	default:
		c.enterRelay(nil)
		o.enterRelay(nil)
		c.refusedBytes, o.refusedBytes = o.slot, c.slot
		c.runtime.Loop.SettleLater(c)
		c.runtime.Loop.SettleLater(o)
	}
}

// isJoinedTo says whether the connection is in a relay with another one.
func (c *Conn) isJoinedTo(partner Ref) bool {
	if !c.is(relayed) {
		return false
	}
	if near := c.localPartner(); near != nil {
		return near == partner.ConnOwnedBy(c.runtime)
	}
	return c.remotePartner().ref == partner
}

// joinRemote joins the connection to one of another owner, which is joined already.
func (c *Conn) joinRemote(partner Ref, in, out *fastPath) {
	switch {
	case c.isJoinedTo(partner): // both have asked
	case c.canJoin(partner):
		c.enterRelay(&remotePartner{ref: partner, incoming: in, outgoing: out})
	default:
		partner.postCloseWith(ErrBadUse)
	}
}

// enterRelay begins a relay, on either side; r is nil where the partner has the same owner.
// What was kept is forwarded by Deliver.
func (c *Conn) enterRelay(remote *remotePartner) {
	c.state |= relayed
	c.state &^= neverHeard | eofDelivered | readPaused | inputHeld | drainedPending | unansweredMask
	if c.is(overHighWater) {
		c.clearHighWater()
	}
	if c.restartPeerTimeouts(); c.is(peerEOF) {
		c.extra.expiry = 0
	}
	if remote != nil {
		c.ensureExtra().remotePartner = remote
		c.openFastPath()
	} else if c.extra != nil {
		c.extra.remotePartner = nil // it has asked
		c.freeExtraIfZero()
	}
}

// postDo posts something to do on a partner.
func (r Ref) postDo(do func(*Conn)) { r.postDoOrElse(do, nil) }

// postDoOrElse is tell with what is done instead if the partner is closing.
func (r Ref) postDoOrElse(do func(*Conn), onLost func()) {
	err := r.post(Request{Kind: RequestDo, alwaysFits: true, Shared: &Shared{Do: do, OnLost: onLost}})
	if err != nil && onLost != nil {
		onLost()
	}
}

// postCloseWith has a partner closed.
func (r Ref) postCloseWith(why error) { r.postDo(func(c *Conn) { c.CloseWith(why) }) }

// remotePartner is what a connection has to know of its partner with another owner.
type remotePartner struct {
	ref            Ref
	unacknowledged int  // bytes that were mailed since the last grant
	partnerPaused  bool // the partner waits for a grant
	// incoming is how the partner gets past this connection's owner, out how this one gets
	// past the partner's; nil where descriptors are for their owners only.
	incoming, outgoing *fastPath
}

// fastPath has a connection's socket sent to by the partner, so that nothing is copied, and
// nobody woken. The lock is held for as long as that takes, which never waits.
type fastPath struct {
	mu       sync.Mutex
	open     bool          // the connection owes nothing, and has no layer
	lastUsed atomic.Uint32 // when it was last used, as a moment
}

// remotePartner is nil for a connection whose partner has the same owner, or that has none.
func (c *Conn) remotePartner() *remotePartner {
	if c.extra == nil {
		return nil
	}
	return c.extra.remotePartner
}

func (c *Conn) openFastPath() {
	if in := c.extra.remotePartner.incoming; in != nil && !c.hasOutput() && c.layer() == nil {
		in.mu.Lock()
		in.open = true
		in.mu.Unlock()
	}
}

// closeFastPath is for a connection that is about to owe something.
func (c *Conn) closeFastPath() {
	if r := c.remotePartner(); r != nil && r.incoming != nil {
		r.incoming.mu.Lock()
		r.incoming.open = false
		r.incoming.mu.Unlock()
	}
}

// updateHeardFromFastPath counts what came by a bypass as heard.
func (c *Conn) updateHeardFromFastPath() {
	if r := c.remotePartner(); r != nil && r.incoming != nil {
		if used := coarseTime(r.incoming.lastUsed.Load()); used != 0 && int32(used-c.lastHeard) > 0 {
			c.lastHeard = used
		}
	}
}

// HasFastPath says whether Bypass may call send at times.
func (c *Conn) HasFastPath() bool {
	r := c.remotePartner()
	return r != nil && r.outgoing != nil
}

// SendFastPath calls send to have the partner's socket sent to, if it may be now, and says
// whether it was called. send does not wait.
func (c *Conn) SendFastPath(send func(o *Conn)) bool {
	if !c.HasFastPath() || c.in != nil || c.is(closing|failed) {
		return false
	}
	r := c.remotePartner()
	r.outgoing.mu.Lock()
	defer r.outgoing.mu.Unlock()
	if !r.outgoing.open || r.ref.c.refState.postedBytes() != 0 { // that goes first
		return false
	}
	r.outgoing.lastUsed.Store(uint32(c.runtime.coarseNow()))
	send(r.ref.c)
	return true
}

// onRemoteOutputSent is for a connection that has sent something.
func (c *Conn) onRemoteOutputSent() {
	c.openFastPath()
	if c.extra.remotePartner.partnerPaused {
		c.resumeRemotePartner()
	}
}

// forwardBuffered forwards what was kept, and then the end.
func (c *Conn) forwardBuffered() {
	if in := c.in; in != nil {
		c.in = nil
		c.forwardToPartner(in.Bytes())
		c.runtime.putBuffer(in)
	}
	if c.is(peerEOF) && !c.is(closing|failed) {
		c.relayEOF()
	}
}

// localPartner is the other connection of one loop, nil if it has another owner. It is not
// asked for any more once the two have begun to close: then a worker may have it, or its
// slot be another one's.
func (c *Conn) localPartner() *Conn {
	if c.remotePartner() != nil {
		return nil
	}
	return c.runtime.Loop.Conn(c.refusedBytes)
}

// forwardToPartner gives the other connection what this one has received.
func (c *Conn) forwardToPartner(p []byte) {
	c.lastHeard = c.runtime.coarseNow()
	if o := c.localPartner(); o != nil {
		o.writeRelayed(p)
		if o.is(overHighWater) {
			c.state |= readPaused
		}
		c.runtime.Loop.SettleLater(o)
		return
	}
	c.forwardToRemote(p)
}

func (c *Conn) forwardToRemote(p []byte) {
	r := c.extra.remotePartner
	c.SendFastPath(func(o *Conn) {
		n := c.runtime.SendToPartner(o, p)
		if p = p[n:]; n > 0 {
			c.runtime.Counters.Add(Writes, 1)
			c.runtime.Counters.Add(BytesOut, int64(n))
		}
	})
	if len(p) == 0 {
		return
	}
	for len(p) > 0 && !c.is(closing|failed) {
		n := min(len(p), c.runtime.Limits.MaxUnsent)
		switch err := r.ref.Send(p[:n]); {
		case err == nil:
			r.unacknowledged += n
			p = p[n:]
		case errors.Is(err, ErrFull):
			c.keepInput(p)
			r.unacknowledged = max(r.unacknowledged, c.runtime.Limits.HighWater+1)
			p = nil
		default: // it is closing, and mail about that is on its way
			return
		}
	}
	if (r.unacknowledged > c.runtime.Limits.HighWater || r.outgoing != nil) && !c.is(readPaused) {
		c.state |= readPaused
		r.ref.postDo(func(o *Conn) {
			if r := o.remotePartner(); r != nil {
				r.partnerPaused = true
				o.resumeRemotePartner()
			}
		})
	}
}

// writeRelayed writes what the other connection has received.
func (c *Conn) writeRelayed(p []byte) {
	if c.is(closing | failed | closingWrite) {
		return
	}
	c.lastHeard = c.runtime.coarseNow()
	h := c.runtime
	if !c.hasOutput() && c.layer() == nil && h.SendDirect != nil && len(p) >= h.MinDirectSend {
		n := h.SendDirect(c, p, nil)
		if n > 0 {
			h.Counters.Add(Writes, 1)
			h.Counters.Add(BytesOut, int64(n))
		}
		p = p[n:]
	}
	c.writeThroughLayer(p)
	if !c.is(overHighWater) && c.UnsentBytes() > h.Limits.HighWater {
		c.state |= overHighWater
		h.Counters.Add(Paused, 1)
	}
}

// SpliceTarget is the connection to which what this one receives may be moved without being
// looked at: nothing waits before it, and neither has a layer. It is nil if there is none.
func (c *Conn) SpliceTarget() *Conn {
	if !c.is(relayed) || c.is(closing|failed) || c.in != nil || c.layer() != nil {
		return nil
	}
	o := c.localPartner()
	if o == nil || o.hasOutput() || o.layer() != nil || o.is(closing|failed|closingWrite) {
		return nil
	}
	return o
}

// CountSpliced counts n bytes that were moved so, or in a Bypass.
func (c *Conn) CountSpliced(n int) {
	c.lastHeard = c.runtime.coarseNow()
	if o := c.localPartner(); o != nil {
		o.lastHeard = c.lastHeard
	}
	if n > 0 {
		c.runtime.Counters.Add(Reads, 1)
		c.runtime.Counters.Add(BytesIn, int64(n))
		c.runtime.Counters.Add(Writes, 1)
		c.runtime.Counters.Add(BytesOut, int64(n))
	}
	if c.is(readBeforeClose) {
		c.noteReadBeforeClose()
	}
}

// resumeLocalPartner has the other connection read again, when this one is below LowWater.
func (c *Conn) resumeLocalPartner() {
	if c.is(closing | failed) {
		return
	}
	if o := c.localPartner(); o != nil {
		o.setReading(true)
		c.runtime.Loop.SettleLater(o)
	}
}

// resumeRemotePartner has the partner go on that has asked, once this one owes little.
func (c *Conn) resumeRemotePartner() {
	r, maxUnsent := c.extra.remotePartner, c.runtime.Limits.LowWater
	if r.incoming != nil {
		maxUnsent = 0 // more goes by the bypass
	}
	if c.is(closing|failed) || c.UnsentBytes() > maxUnsent {
		return
	}
	r.partnerPaused = false
	r.ref.postDo(func(o *Conn) {
		if r := o.remotePartner(); r != nil {
			r.unacknowledged = 0
			o.setReading(true)
		}
	})
}

// relayEOF passes on that the peer has ended, behind all it has sent.
func (c *Conn) relayEOF() {
	if c.in != nil || c.is(eofDelivered) {
		return
	}
	c.state |= eofDelivered
	c.lastHeard = c.runtime.coarseNow()
	if o := c.localPartner(); o != nil {
		o.CloseWrite()
		c.runtime.Loop.SettleLater(o)
		return
	}
	c.extra.remotePartner.ref.postDo((*Conn).CloseWrite)
}

// closePartner passes on that the connection closes.
func (c *Conn) closePartner(why error) {
	if o := c.localPartner(); o != nil {
		if !o.is(closing) {
			o.CloseWith(why)
			c.runtime.Loop.SettleLater(o)
		}
		return
	}
	c.extra.remotePartner.ref.postCloseWith(why)
}
