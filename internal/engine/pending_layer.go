package engine

import (
	"errors"
	"io"
	"math"
	"slices"
)

// This file is how a connection gets a layer after its handler has heard of it, as by
// STARTTLS. It is asked for in a call of the handler and begins when that has returned: no
// input in clear may be left then, because the handler would take it for input that came by
// the layer. From then on the connection greets again, but Closed is called for its end.
// Mail that comes meanwhile is kept: it goes by the layer.

// ErrClearInput says that there was such input.
var ErrClearInput = errors.New("myriad: input in clear behind the one that starts TLS")

// pendingLayer is what such a connection has until the layer has greeted.
type pendingLayer struct {
	newLayer       func(*Conn) Layer // nil when it has begun
	deferred       []deferredRequest
	deferredMemory int // bytes of memory of mail that is kept, as they are counted
}

type deferredRequest struct {
	request QueuedRequest
	data    []byte
}

// Securer is a Handler that is called when the layer of an Upgrade has greeted: on the
// owner, never by a worker.
type Securer interface {
	Secured(c *Conn)
}

// InsertLayer gives the connection a layer when the call at hand has returned.
func (c *Conn) InsertLayer(newLayer func(*Conn) Layer) error {
	switch {
	case !c.is(open) || c.is(closing|failed|closingWrite|shut):
		return ErrClosed
	case c.is(handshaking) || c.layer() != nil || c.isInputTaken() || c.queuedFiles() != nil:
		return ErrBadUse
	}
	c.setReading(false)
	c.ensureExtra().pendingLayer = &pendingLayer{newLayer: newLayer}
	return nil
}

func (c *Conn) hasPendingLayer() bool { return c.extra != nil && c.extra.pendingLayer != nil }

// startPendingLayer puts the layer in, after an event.
func (c *Conn) startPendingLayer() {
	x := c.extra
	newLayer := x.pendingLayer.newLayer
	if newLayer == nil || c.is(closing|failed) {
		return
	}
	x.pendingLayer.newLayer = nil
	switch {
	case c.in != nil:
		c.CloseWith(ErrClearInput)
		return
	case c.is(peerEOF):
		c.CloseWith(io.EOF)
		return
	}
	c.state &^= readPaused | inputHeld
	c.lastHeard = c.runtime.coarseNow()
	c.state |= handshaking
	c.runtime.Counters.Add(Handshaking, 1)
	x.layer, x.expiry = newLayer(c), math.MaxInt64
	if t := c.runtime.Limits.HandshakeTimeout; t > 0 {
		x.expiry = c.runtime.Now() + t
	}
	c.resumeLayer()
}

// finishPendingLayer goes on when the layer has greeted.
func (c *Conn) finishPendingLayer() {
	x := c.extra
	kept := x.pendingLayer.deferred
	c.runtime.Counters.Add(Buffered, -int64(x.pendingLayer.deferredMemory))
	x.pendingLayer, x.expiry = nil, 0
	if c.is(peerEOF) {
		x.expiry = c.runtime.Now() + c.runtime.Limits.CloseTimeout
	}
	handleDeferred := func() {
		for len(kept) > 0 {
			k := kept[0]
			kept = kept[1:]
			c.OnRequest(k.request, k.data)
		}
	}
	defer handleDeferred() // what a Goexit leaves, which no handler gets
	if s, ok := c.handler().(Securer); ok {
		c.callHandler(s.Secured)
	}
	handleDeferred()
}

// dropPendingLayer lets go of what is kept for a layer that does not come any more.
func (c *Conn) dropPendingLayer() {
	kept := c.extra.pendingLayer.deferred
	c.runtime.Counters.Add(Buffered, -int64(c.extra.pendingLayer.deferredMemory))
	c.extra.pendingLayer = nil
	if c.is(handshaking) {
		c.state &^= handshaking
		c.runtime.Counters.Add(Handshaking, -1)
	}
	for _, k := range kept {
		c.OnRequest(k.request, k.data) // which is late
	}
}

// maxKeptData keeps mail that is to go by the layer, and says whether it has.
func (c *Conn) deferRequest(req QueuedRequest, data []byte) bool {
	if !c.hasPendingLayer() || !c.is(open) || req.Kind == RequestResumeLayer || req.Kind == RequestBroadcast {
		return false
	}
	u := c.extra.pendingLayer
	if len(u.deferred) >= 2*c.runtime.Limits.MaxMail {
		c.CloseWith(ErrFull)
		return false
	}
	if req.shared != nil {
		data = nil // it has them
	}
	u.deferred = append(u.deferred, deferredRequest{req, slices.Clone(data)})
	n := QueuedRequestSize + len(data)
	u.deferredMemory += n
	c.runtime.Counters.Add(Buffered, int64(n))
	return true
}
