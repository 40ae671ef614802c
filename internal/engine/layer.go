package engine

import (
	"errors"
	"io"
	"math"
	"time"
)

// Layer stands between a connection's transport and its core, and changes the
// bytes in both directions: TLS, or what comes before the first message, such as
// a PROXY header. Drivers and handlers know nothing of it. Its methods are called
// on the connection's owner, none after Closed.
//
// A connection with layers greets: Opened is called when the last layer that has to has
// called Conn.Greeted. One that ends before is
// counted as refused.
type Layer interface {
	// OnRead takes what the transport has received; p is valid during the
	// call. What is for the handler it gives to Conn.Plain.
	OnRead(c *Conn, p []byte) error
	// Write takes what is to be sent, and gives it to Conn.Append in the form
	// that is for the transport.
	Write(c *Conn, p []byte) error
	// Resume is called when it has asked for it with Ref.ResumeLayer, and now and
	// then while the connection greets.
	Resume(c *Conn) error
	// Memory is how many bytes of memory the layer keeps because of what has
	// arrived, and whether a part of something is among it.
	Memory() (memory int, partial bool)
	// InputFull says, while the connection greets, that nothing more is to be read
	// before the next Resume.
	InputFull() bool
	// OnEOF says that the transport will bring no more.
	OnEOF(c *Conn) error
	// SendClose is called when everything has been sent, to say goodbye with
	// Conn.Append.
	SendClose(c *Conn)
	// OnClosed says that the connection is closed.
	OnClosed(c *Conn)
}

// layer is the connection's layer, nil if it has none.
func (c *Conn) layer() Layer {
	if c.extra == nil {
		return nil
	}
	return c.extra.layer
}

// Layer is the connection's layer, nil if it has none.
func (c *Conn) Layer() Layer { return c.layer() }

// startLayer begins with a layer.
func (c *Conn) startLayer(l Layer) {
	c.state |= handshaking
	c.runtime.Counters.Add(Handshaking, 1)
	x := c.ensureExtra()
	x.layer, x.expiry = l, math.MaxInt64 // a due, so that it is looked at often
	if t := c.runtime.Limits.HandshakeTimeout; t > 0 {
		x.expiry = c.runtime.Now() + t
	}
	c.resumeLayer()
	c.endEvent()
}

// SetLayer puts another layer in the place of one that has done its part; nil is
// none.
func (c *Conn) SetLayer(l Layer) {
	c.extra.layer = l
	c.releaseLayerMemory()
}

// releaseLayerMemory counts out what a layer has held.
func (c *Conn) releaseLayerMemory() {
	if c.extra != nil && c.extra.layerBytes != 0 {
		c.runtime.Counters.Add(Buffered, -int64(c.extra.layerBytes))
		c.extra.layerBytes = 0
	}
}

// OnHandshakeDone ends the greeting: from now on the handler is called.
func (c *Conn) OnHandshakeDone() {
	if !c.is(handshaking) || c.is(closing|failed) {
		return
	}
	c.state &^= handshaking | unansweredMask
	c.runtime.Counters.Add(Handshaking, -1)
	c.lastHeard = c.runtime.coarseNow()
	if c.hasPendingLayer() {
		c.finishPendingLayer()
		return
	}
	c.state |= neverHeard
	if c.extra.expiry = 0; c.is(peerEOF) { // already: see OnPeerEOF
		c.extra.expiry = c.runtime.Now() + c.runtime.Limits.CloseTimeout
	}
	c.callOrDeferOpened()
}

// feedLayer gives the layer what has arrived.
func (c *Conn) feedLayer(p []byte) {
	c.handleLayerError(c.extra.layer.OnRead(c, p))
	c.updateLayerMemory()
}

// updateLayerMemory counts what the layer holds, and notes since when it waits for the rest of
// something.
func (c *Conn) updateLayerMemory() {
	l := c.layer()
	if l == nil {
		return
	}
	x, memory, partial := c.extra, 0, false
	if !c.is(failed) {
		memory, partial = l.Memory()
	}
	if memory != x.layerBytes {
		c.runtime.Counters.Add(Buffered, int64(memory-x.layerBytes))
		x.layerBytes = memory
	}
	switch {
	case !partial:
		x.layerPartialSince = 0
	case x.layerPartialSince == 0:
		x.layerPartialSince = c.runtime.Clock()
	}
}

// partialSince is since when the layer, or the handler, waits for the rest of something; 0 if
// neither does.
func (c *Conn) partialSince() time.Duration {
	if c.extra == nil {
		return 0
	}
	return earlierTime(c.extra.layerPartialSince, c.extra.handlerPartialSince)
}

// writeThroughLayer appends to the output, by way of the layer. What stands behind a file
// waits for it in front of the layer.
func (c *Conn) writeThroughLayer(p []byte) {
	switch l := c.layer(); {
	case c.queuedFiles() != nil:
		if len(p) > 0 && !c.is(failed) {
			appendOutput(c.runtime, c.tailBuffer(len(p)), p)
		}
	case l != nil:
		c.handleLayerError(l.Write(c, p))
	default:
		c.AppendToTransport(p)
	}
}

// AppendToTransport appends to the output as it goes to the transport.
func (c *Conn) AppendToTransport(p []byte) {
	if len(p) > 0 && !c.is(failed) {
		b := c.transportTail()
		if *b == nil {
			c.allocOutput(b, len(p))
		}
		appendOutput(c.runtime, *b, p)
	}
}

// resumeLayer has the layer go on with its handshake.
func (c *Conn) resumeLayer() {
	if l := c.layer(); l != nil && !c.is(closing|failed) {
		c.handleLayerError(l.Resume(c))
		c.updateLayerMemory()
	}
}

// handleLayerError takes a layer's error.
func (c *Conn) handleLayerError(err error) {
	switch {
	case err == nil || c.is(closing|failed):
		return
	case c.hasPendingLayer() && !errors.Is(err, io.EOF):
		err = &TLSError{Err: err}
	}
	switch {
	case c.is(handshaking) && c.UnsentBytes() == 0:
		c.abortWith(err)
	default:
		c.CloseWith(err)
	}
}
