package engine

import (
	"errors"
	"io"
	"math"
	"time"
)

// Layer transforms the bytes between a connection's transport and its handler. Examples are TLS and the PROXY header.
// The connection's owner calls the methods. OnClosed is the last call.
//
// A layer with a handshake calls Conn.OnHandshakeDone at the end of the handshake. The handler's Opened is called after
// the last handshake. A connection that ends before Opened counts as refused.
type Layer interface {
	// OnRead decodes bytes from the transport and passes them to Conn.OnPlaintext. p is valid only during the call.
	OnRead(c *Conn, p []byte) error
	// Write encodes bytes and passes them to Conn.AppendToTransport.
	Write(c *Conn, p []byte) error
	// ContinueHandshake is called after Ref.ResumeLayer, and periodically during the handshake.
	ContinueHandshake(c *Conn) error
	// Memory returns the number of bytes that the layer buffers. If partial is true, they include a partial message.
	Memory() (memory int, partial bool)
	// InputFull reports, during the handshake, whether reading must wait for the next ContinueHandshake.
	InputFull() bool
	OnEOF(c *Conn) error
	// SendClose is called when all output has been sent. It may pass a closing message to Conn.AppendToTransport.
	SendClose(c *Conn)
	OnClosed(c *Conn)
}

// MovableLayer is a Layer whose state can move to another process, together with its connection.
type MovableLayer interface {
	Layer
	// AppendState appends the state from which Config.RestoreLayer makes the layer again.
	AppendState(dst []byte) []byte
}

func (c *Conn) hasUnmovableLayer() bool {
	l := c.layer()
	if l == nil {
		return false
	}
	_, ok := l.(MovableLayer)
	return !ok || c.runtime.RestoreLayer == nil
}

func (c *Conn) layer() Layer {
	if c.extra == nil {
		return nil
	}
	return c.extra.layer
}

func (c *Conn) Layer() Layer { return c.layer() }

func (c *Conn) startFirstLayer(l Layer) {
	c.state |= handshaking
	c.runtime.Counters.Add(Handshaking, 1)
	x := c.ensureExtra()
	x.layer, x.expiry = l, math.MaxInt64 // because of the expiry, sweeps check the connection often
	if t := c.runtime.Limits.HandshakeTimeout; t > 0 {
		x.expiry = c.runtime.Now() + t
	}
	c.continueLayerHandshake()
	c.startPendingLayerAndUpdatePause()
}

// ReplaceLayer replaces the connection's layer by l. If l is nil, the connection has no layer afterwards.
func (c *Conn) ReplaceLayer(l Layer) {
	c.extra.layer = l
	c.uncountLayerMemory()
}

func (c *Conn) uncountLayerMemory() {
	if c.extra != nil && c.extra.layerBytes != 0 {
		c.runtime.Counters.Add(Buffered, -int64(c.extra.layerBytes))
		c.extra.layerBytes = 0
	}
}

// OnHandshakeDone records that the layer's handshake is complete. It then calls the handler's Opened. If workers run
// the handlers, it schedules this call instead. For a layer that was inserted by RequestLayerInsertion, it calls the
// handler's Secured instead of Opened.
func (c *Conn) OnHandshakeDone() {
	if !c.is(handshaking) || c.is(closing|failed) {
		return
	}
	c.state &^= handshaking | unansweredMask
	c.runtime.Counters.Add(Handshaking, -1)
	c.lastHeard = c.runtime.coarseNow()
	if c.hasPendingLayer() {
		c.callSecuredAndHandleDeferred()
		return
	}
	c.state |= neverHeard
	if c.extra.expiry = 0; c.is(peerEOF) { // see MarkPeerEOFAndForwardOrStartTimeout
		c.extra.expiry = c.runtime.Now() + c.runtime.Limits.CloseTimeout
	}
	c.callOpenedOrMarkOpenPending()
}

func (c *Conn) feedLayer(p []byte) {
	c.closeOrAbortIfLayerError(c.extra.layer.OnRead(c, p))
	c.updateLayerMemoryAndPartialTime()
}

func (c *Conn) updateLayerMemoryAndPartialTime() {
	l := c.layer()
	if l == nil {
		return
	}
	x, memory, partial := c.extra, 0, false
	if !c.is(failed) {
		memory, partial = l.Memory()
	}
	if change := memory - int(x.layerBytes); change != 0 {
		c.runtime.Counters.Add(Buffered, int64(change))
		x.layerBytes = int32(memory) // at most secure.MaxHandshakeInput and some buffers
	}
	switch {
	case !partial:
		x.layerPartialSince = 0
	case x.layerPartialSince == 0:
		x.layerPartialSince = c.runtime.Clock()
	}
}

// partialMessageSince returns the time since which a partial message has been buffered, or 0 if there is none.
func (c *Conn) partialMessageSince() (startTime time.Duration) {
	if c.extra == nil {
		return 0
	}
	return earlierNonzeroTime(c.extra.layerPartialSince, c.extra.handlerPartialSince)
}

// writeThroughLayerOrBehindFile appends p to the output. If the connection has a layer, the layer encodes p. While a
// file is queued, p is stored behind the file, and is encoded only after the file has been sent.
func (c *Conn) writeThroughLayerOrBehindFile(p []byte) {
	switch l := c.layer(); {
	case c.fileQueueOrNil() != nil:
		if len(p) > 0 && !c.is(failed) {
			appendOutput(c.runtime, c.tailBufferOrNew(len(p)), p)
		}
	case l != nil:
		c.closeOrAbortIfLayerError(l.Write(c, p))
	default:
		c.AppendToTransport(p)
	}
}

// AppendToTransport appends p to the output without passing it through the layer.
func (c *Conn) AppendToTransport(p []byte) {
	if len(p) > 0 && !c.is(failed) {
		b := c.addrOfTransportTail()
		if *b == nil {
			c.allocOutputAtTail(b, len(p))
		}
		appendOutput(c.runtime, *b, p)
	}
}

// AppendSpace extends the output by n bytes and returns the new bytes. The caller must fill them in before it calls
// another method of c. They are sent as they are: the connection's layer, such as TLS, does not process them.
func (c *Conn) AppendSpace(n int) []byte {
	if c.is(failed) {
		return make([]byte, n)
	}
	b := c.addrOfTransportTail()
	if *b == nil {
		c.allocOutputAtTail(b, n)
	}
	return appendOutputSpace(c.runtime, *b, n)
}

func (c *Conn) continueLayerHandshake() {
	if l := c.layer(); l != nil && !c.is(closing|failed) {
		c.closeOrAbortIfLayerError(l.ContinueHandshake(c))
		c.updateLayerMemoryAndPartialTime()
	}
}

func (c *Conn) closeOrAbortIfLayerError(err error) {
	switch {
	case err == nil || c.is(closing|failed):
		return
	case c.hasPendingLayer() && !errors.Is(err, io.EOF):
		err = &TLSError{Err: err}
	}
	switch {
	case c.is(handshaking) && c.UnsentAndDroppedBytes() == 0:
		c.abortWith(err)
	default:
		c.CloseWith(err)
	}
}

// CountTLS counts a TLS handshake. reason is a secure.StayReason. It is 0 if the compact record layer has taken over
// the connection; otherwise it is the reason why crypto/tls continues to process the connection's records.
func (c *Conn) CountTLS(reason int) { c.runtime.Counters.Add(TLSCompact+Counter(reason), 1) }
