package engine

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
)

// This file relays between two connections.
//
// Two connections of the same loop need no extra memory: refusedBytes stores the partner's slot. Input of one
// connection is written to its partner immediately. If the partner has more than HighWater unsent bytes, the connection
// is not read until at most LowWater bytes are left. Both connections begin to close in one step, so that no slot is
// reused while the relay refers to it.
//
// Connections of different owners refer to each other by Ref and post requests. A connection that has posted more than
// HighWater bytes since the last grant requests a grant, and is not read until the grant arrives. The partner sends the
// grant when its output has fallen to LowWater. Requests are ordered, so EOF arrives after the data.
//
// If any goroutine may use sockets (Runtime.SendToPartner is set), a connection sends directly on its partner's socket
// while the partner has no unsent output; see fastPath. Bytes that the kernel does not accept are posted, and reading
// continues once they are sent.
//
// A connection that requests a relay is not read until both connections are joined. The request runs
// acceptRelayOrCloseRequester on the partner's owner. If the owners differ, the partner is joined first. A second
// request then joins the requester before any data arrives.
//
// Apart from data, a relay posts only a few requests per connection at a time. These always fit into a mailbox
// (Request.alwaysFits), so a connection always learns that its partner has ended.

func (c *Conn) RequestRelayWith(partner Ref) error {
	switch {
	case c.is(closing|failed|closingWrite) || !c.is(open) || partner.IsClosed():
		return ErrClosed
	case partner.c == c || c.isInputTaken():
		return ErrBadUse
	}
	from := c.Ref()
	err := partner.post(Request{Kind: RequestDo, Shared: from.newRelayRequest()})
	if err == nil {
		c.state |= readPaused
		c.ensureRare().remotePartner = &remotePartner{ref: partner}
	}
	return err
}

func (c *Conn) IsRelayed() bool { return c.is(relayed) }

// isInputTaken reports whether input does not go to the handler, because of a relay, a pending layer or a Detach.
func (c *Conn) isInputTaken() bool {
	return c.is(relayed) || c.extra != nil && (c.remotePartner() != nil || c.hasPendingLayer() || c.isDetaching())
}

func (c *Conn) isFreeToRelayWith(partner Ref) bool {
	switch {
	case c.is(relayed | closingWrite):
		return false
	case c.isInputTaken():
		return c.remotePartner() != nil && c.remotePartner().ref == partner
	}
	return true
}

// newRelayRequest returns a request that is posted to another connection and makes that connection the relay partner of
// r. If that connection closes before it has handled the request, r is closed with ErrClosed.
func (r Ref) newRelayRequest() *Shared {
	return &Shared{Do: func(o *Conn) { o.acceptRelayOrCloseRequester(r) }, OnLost: func() { r.postCloseWith(ErrClosed) }}
}

// acceptRelayOrCloseRequester joins c and requester in a relay. If a worker is using requester, they are joined when
// the worker has finished. If c or requester is not free, for example because it is in another relay, requester is
// closed with ErrBadUse. If requester has closed in the meantime, c is closed.
func (c *Conn) acceptRelayOrCloseRequester(requester Ref) {
	o, here := requester.ConnIfOwnedBy(c.runtime), c.Ref()
	near := c.runtime.Loop != nil && o != nil
	switch {
	case c.isRelayedTo(requester): // both have asked
	case !c.isFreeToRelayWith(requester):
		requester.postCloseWith(ErrBadUse)
	case requester.IsClosed():
		c.CloseWith(ErrClosed)
	case !near:
		var in, out *fastPath
		if c.runtime.SendToPartner != nil {
			in, out = new(fastPath), new(fastPath)
		}
		requester.postDoOrElse(func(o *Conn) { o.joinRelayOrClosePartner(here, out, in) }, func() { here.postCloseWith(ErrClosed) })
		c.enterRelayState(&remotePartner{ref: requester, incoming: in, outgoing: out})
	case !c.runtime.Loop.OwnsConn(o):
		again := requester.newRelayRequest()
		requester.postDoOrElse(func(*Conn) { here.postDoOrElse(again.Do, again.OnLost) }, func() { here.postCloseWith(ErrClosed) })
	case !o.isFreeToRelayWith(here):
		o.CloseWith(ErrBadUse)
		c.runtime.Loop.PerformActionsLater(o)
	default:
		c.enterRelayState(nil)
		o.enterRelayState(nil)
		c.refusedBytes, o.refusedBytes = o.slot, c.slot
		c.runtime.Loop.PerformActionsLater(c)
		c.runtime.Loop.PerformActionsLater(o)
	}
}

func (c *Conn) isRelayedTo(partner Ref) bool {
	if !c.is(relayed) {
		return false
	}
	if near := c.localPartner(); near != nil {
		return near == partner.ConnIfOwnedBy(c.runtime)
	}
	return c.remotePartner().ref == partner
}

func (c *Conn) joinRelayOrClosePartner(partner Ref, incoming, outgoing *fastPath) {
	switch {
	case c.isRelayedTo(partner): // both have asked
	case c.isFreeToRelayWith(partner):
		c.enterRelayState(&remotePartner{ref: partner, incoming: incoming, outgoing: outgoing})
	default:
		partner.postCloseWith(ErrBadUse)
	}
}

// enterRelayState marks c as relayed. remote describes the relay partner. If c and the partner have the same owner,
// remote must be nil.
func (c *Conn) enterRelayState(remote *remotePartner) {
	c.state |= relayed
	c.state &^= neverHeard | eofDelivered | readPaused | inputHeld | drainedPending | unansweredMask
	if c.is(overHighWater) {
		c.endHighWaterPause()
	}
	if c.restartPeerTimeouts(); c.is(peerEOF) {
		c.extra.expiry = 0
	}
	if remote != nil {
		c.ensureRare().remotePartner = remote
		c.allowPartnerFastPathIfNoOutput()
	} else if c.hasRare() {
		c.extra.remotePartner = nil // c had requested the relay
		c.freeExtraIfZero()
	}
}

func (r Ref) postDo(do func(*Conn)) { r.postDoOrElse(do, nil) }

// postDoOrElse makes the connection's owner call the function do. If the connection closes before the call, the
// function onLost is called instead. onLost may be nil.
func (r Ref) postDoOrElse(do func(*Conn), onLost func()) {
	err := r.post(Request{Kind: RequestDo, alwaysFits: true, Shared: &Shared{Do: do, OnLost: onLost}})
	if err != nil && onLost != nil {
		onLost()
	}
}

func (r Ref) postCloseWith(reason error) { r.postDo(func(c *Conn) { c.CloseWith(reason) }) }

// remotePartner describes a relay partner that has another owner or has not yet accepted the relay.
type remotePartner struct {
	ref            Ref
	unacknowledged int  // bytes posted since the last grant
	partnerPaused  bool // the partner waits for a grant
	// The partner sends through incoming, and this connection through outgoing. Both are nil if only owners may use
	// descriptors.
	incoming, outgoing *fastPath
}

// fastPath lets a relay partner send directly on a connection's socket. The mutex mu is held during each send.
type fastPath struct {
	mu       sync.Mutex
	open     bool          // the connection has no unsent output and no layer
	lastUsed atomic.Uint32 // a coarseTime
}

func (c *Conn) remotePartner() *remotePartner {
	if c.extra == nil {
		return nil
	}
	return c.extra.remotePartner
}

func (c *Conn) allowPartnerFastPathIfNoOutput() {
	if in := c.extra.remotePartner.incoming; in != nil && !c.hasOutput() && c.layer() == nil {
		in.mu.Lock()
		in.open = true
		in.mu.Unlock()
	}
}

// blockPartnerFastPath keeps the relay partner from sending on c's socket. It must be called before output is added to
// c.
func (c *Conn) blockPartnerFastPath() {
	if r := c.remotePartner(); r != nil && r.incoming != nil {
		r.incoming.mu.Lock()
		r.incoming.open = false
		r.incoming.mu.Unlock()
	}
}

func (c *Conn) countPartnerSendsAsActivity() {
	if r := c.remotePartner(); r != nil && r.incoming != nil {
		if used := coarseTime(r.incoming.lastUsed.Load()); used != 0 && int32(used-c.lastHeard) > 0 {
			c.lastHeard = used
		}
	}
}

// MaySendOnPartnerSocket reports whether c may send directly on the socket of a relay partner with another owner.
func (c *Conn) MaySendOnPartnerSocket() bool {
	r := c.remotePartner()
	return r != nil && r.outgoing != nil
}

// TrySendOnPartnerSocket calls the function send with the relay partner, if the partner's socket may be used now. send
// must not block.
func (c *Conn) TrySendOnPartnerSocket(send func(o *Conn)) (called bool) {
	if !c.MaySendOnPartnerSocket() || c.in != nil || c.is(closing|failed) {
		return false
	}
	r := c.remotePartner()
	r.outgoing.mu.Lock()
	defer r.outgoing.mu.Unlock()
	if !r.outgoing.open || r.ref.c.refState.postedBytes() != 0 { // unsent or posted bytes must be sent first
		return false
	}
	r.outgoing.lastUsed.Store(uint32(c.runtime.coarseNow()))
	send(r.ref.c)
	return true
}

// reopenFastPathAndResumePartner is called after c has sent output. If no output is left, the relay partner may send on
// c's socket again. If the relay partner has paused reading because of c's unsent output, and little output is left,
// the relay partner resumes reading. c must have a remotePartner.
func (c *Conn) reopenFastPathAndResumePartner() {
	c.allowPartnerFastPathIfNoOutput()
	if c.extra.remotePartner.partnerPaused {
		c.postPartnerResumeIfLow()
	}
}

func (c *Conn) forwardBufferedInputAndEOF() {
	if in := c.in; in != nil {
		c.in = nil
		c.forwardToPartner(in.Bytes())
		c.runtime.freeCountedBuffer(in)
	}
	if c.is(peerEOF) && !c.is(closing|failed) {
		c.forwardEOFToPartner()
	}
}

// localPartner returns c's relay partner, or nil if the partner has another owner. c must be relayed, and the slot of
// the partner must still be in use.
func (c *Conn) localPartner() (partnerOrNil *Conn) {
	if c.remotePartner() != nil {
		return nil
	}
	return c.runtime.Loop.Conn(c.refusedBytes)
}

func (c *Conn) forwardToPartner(p []byte) {
	c.lastHeard = c.runtime.coarseNow()
	if o := c.localPartner(); o != nil {
		o.sendOrBufferRelayed(p)
		if o.is(overHighWater) {
			c.state |= readPaused
		}
		c.runtime.Loop.PerformActionsLater(o)
		return
	}
	c.forwardToRemotePartner(p)
}

func (c *Conn) forwardToRemotePartner(p []byte) {
	r := c.extra.remotePartner
	c.TrySendOnPartnerSocket(func(o *Conn) {
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
			c.bufferUnusedInput(p)
			r.unacknowledged = max(r.unacknowledged, c.runtime.Limits.HighWater+1)
			p = nil
		default: // the partner is closing and will close c
			return
		}
	}
	if (r.unacknowledged > c.runtime.Limits.HighWater || r.outgoing != nil) && !c.is(readPaused) {
		c.state |= readPaused
		r.ref.postDo(func(o *Conn) {
			if r := o.remotePartner(); r != nil {
				r.partnerPaused = true
				o.postPartnerResumeIfLow()
			}
		})
	}
}

func (c *Conn) sendOrBufferRelayed(p []byte) {
	if c.is(closing | failed | closingWrite) {
		return
	}
	c.lastHeard = c.runtime.coarseNow()
	rt := c.runtime
	if !c.hasOutput() && c.layer() == nil && rt.SendDirect != nil && len(p) >= rt.MinDirectSend {
		n := rt.SendDirect(c, p, nil)
		if n > 0 {
			rt.Counters.Add(Writes, 1)
			rt.Counters.Add(BytesOut, int64(n))
		}
		p = p[n:]
	}
	c.writeThroughLayerOrBehindFile(p)
	if !c.is(overHighWater) && c.UnsentAndDroppedBytes() > rt.Limits.HighWater {
		c.state |= overHighWater
		rt.Counters.Add(Paused, 1)
	}
}

// SpliceTargetIfReady returns the relay partner if the driver may now splice c's input to the partner's socket.
// Otherwise, it returns nil.
func (c *Conn) SpliceTargetIfReady() *Conn {
	if !c.is(relayed) || c.is(closing|failed) || c.in != nil || c.layer() != nil {
		return nil
	}
	o := c.localPartner()
	if o == nil || o.hasOutput() || o.layer() != nil || o.is(closing|failed|closingWrite) {
		return nil
	}
	return o
}

// CountSpliced counts n bytes that c has passed to its relay partner by splice or TrySendOnPartnerSocket.
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
	if c.is(finalReadPending) {
		c.clearFinalReadUnlessNeeded()
	}
}

func (c *Conn) resumeLocalPartnerReading() {
	if c.is(closing | failed) {
		return
	}
	if o := c.localPartner(); o != nil {
		o.setReadingEnabled(true)
		c.runtime.Loop.PerformActionsLater(o)
	}
}

func (c *Conn) postPartnerResumeIfLow() {
	r, maxUnsent := c.extra.remotePartner, c.runtime.Limits.LowWater
	if r.incoming != nil {
		maxUnsent = 0 // later data takes the fast path
	}
	if c.is(closing|failed) || c.UnsentAndDroppedBytes() > maxUnsent {
		return
	}
	r.partnerPaused = false
	r.ref.postDo(func(o *Conn) {
		if r := o.remotePartner(); r != nil {
			r.unacknowledged = 0
			o.setReadingEnabled(true)
		}
	})
}

func (c *Conn) forwardEOFToPartner() {
	if c.in != nil || c.is(eofDelivered) {
		return
	}
	c.state |= eofDelivered
	c.lastHeard = c.runtime.coarseNow()
	if o := c.localPartner(); o != nil {
		o.CloseWrite()
		c.runtime.Loop.PerformActionsLater(o)
		return
	}
	c.extra.remotePartner.ref.postDo((*Conn).CloseWrite)
}

func (c *Conn) closePartner(reason error) {
	if o := c.localPartner(); o != nil {
		if !o.is(closing) {
			o.closeWithPartnerReason(reason)
			c.runtime.Loop.PerformActionsLater(o)
		}
		return
	}
	c.extra.remotePartner.ref.postDo(func(o *Conn) { o.closeWithPartnerReason(reason) })
}

func (c *Conn) closeWithPartnerReason(reason error) {
	if reason != nil && reason != io.EOF && !c.is(closing) {
		c.ensureExtra().layerCloseSent = true // no close_notify, so that the peer detects missing data
	}
	c.CloseWith(reason)
}
