package engine

import (
	"errors"
	"io"
	"math"
	"slices"
)

// This file inserts a layer after Opened, for example for STARTTLS. The layer is requested in a handler call and starts
// when that call has returned. If unused plaintext input is left, the connection is closed, because the handler would
// treat this input as if it came from the layer. During the layer's handshake, the state bit handshaking is set again.
// If the connection ends during this handshake, Closed is called, unlike in a handshake before Opened. Requests are
// deferred until the handshake is done, so that their data passes the layer.

// ErrClearInput is the close reason if plaintext input is still unread when TLS starts.
var ErrClearInput = errors.New("myriad: plaintext input after the command that starts TLS")

// pendingLayer is the state of a requested layer until its handshake ends.
type pendingLayer struct {
	newLayer       func(*Conn) Layer // nil once the layer has started
	deferred       []deferredRequest
	deferredMemory int // memory of deferred requests, as counted in Buffered
}

type deferredRequest struct {
	request QueuedRequest
	data    []byte
}

// Securer is an optional interface that a Handler may implement. Secured is called when a layer that was inserted by
// RequestLayerInsertion has completed its handshake. The connection's loop or goroutine calls Secured, never a worker.
type Securer interface {
	Secured(c *Conn)
}

// RequestLayerInsertion inserts a layer, such as TLS, when the current handler call has returned. newLayer creates the
// layer. If c is closing or half-closed, RequestLayerInsertion fails with ErrClosed. If c has a layer, a relay, a
// requested Detach or queued files, it fails with ErrBadUse.
func (c *Conn) RequestLayerInsertion(newLayer func(*Conn) Layer) error {
	switch {
	case !c.is(open) || c.is(closing|failed|closingWrite|shut):
		return ErrClosed
	case c.is(handshaking) || c.layer() != nil || c.isInputTaken() || c.fileQueueOrNil() != nil:
		return ErrBadUse
	}
	c.setReadingEnabled(false)
	c.ensureRare().pendingLayer = &pendingLayer{newLayer: newLayer}
	return nil
}

func (c *Conn) hasPendingLayer() bool { return c.extra != nil && c.extra.pendingLayer != nil }

func (c *Conn) startPendingLayerOrClose() {
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
	c.continueLayerHandshake()
}

func (c *Conn) callSecuredAndHandleDeferred() {
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
			c.HandleOrDeferForPendingLayer(k.request, k.data)
		}
	}
	defer handleDeferred() // handles the rest after a Goexit in a handler
	if s, ok := c.ownOrEngineHandler().(Securer); ok {
		c.callHandler(s.Secured)
	}
	handleDeferred()
}

func (c *Conn) cancelPendingLayerAndHandleDeferred() {
	kept := c.extra.pendingLayer.deferred
	c.runtime.Counters.Add(Buffered, -int64(c.extra.pendingLayer.deferredMemory))
	c.extra.pendingLayer = nil
	if c.is(handshaking) {
		c.state &^= handshaking
		c.runtime.Counters.Add(Handshaking, -1)
	}
	for _, k := range kept {
		c.HandleOrDeferForPendingLayer(k.request, k.data) // which drops the stale request
	}
}

// deferIfLayerPendingOrCloseIfFull stores req and data if c waits until an inserted layer has completed its handshake.
// It stores neither broadcasts nor requests that continue the handshake. If too many requests are already stored, it
// closes the connection with ErrFull and returns false.
func (c *Conn) deferIfLayerPendingOrCloseIfFull(req QueuedRequest, data []byte) (deferred bool) {
	if !c.hasPendingLayer() || !c.is(open) || req.Kind == RequestResumeLayer || req.Kind == RequestBroadcast {
		return false
	}
	u := c.extra.pendingLayer
	if len(u.deferred) >= 2*c.runtime.Limits.MaxMail {
		c.CloseWith(ErrFull)
		return false
	}
	if req.shared != nil {
		data = nil // shared bytes stay valid and need no copy
	}
	u.deferred = append(u.deferred, deferredRequest{req, slices.Clone(data)})
	n := QueuedRequestSize + len(data)
	u.deferredMemory += n
	c.runtime.Counters.Add(Buffered, int64(n))
	return true
}
