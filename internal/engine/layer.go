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
	// Arrived takes what the transport has received; p is valid during the
	// call. What is for the handler it gives to Conn.Plain.
	Arrived(c *Conn, p []byte) error
	// Write takes what is to be sent, and gives it to Conn.Append in the form
	// that is for the transport.
	Write(c *Conn, p []byte) error
	// Resume is called when it has asked for it with Ref.ResumeLayer, and now and
	// then while the connection greets.
	Resume(c *Conn) error
	// Held is how many bytes of memory the layer keeps because of what has
	// arrived, and whether a part of something is among it.
	Held() (memory int, partial bool)
	// Full says, while the connection greets, that nothing more is to be read
	// before the next Resume.
	Full() bool
	// Ended says that the transport will bring no more.
	Ended(c *Conn) error
	// Closing is called when everything has been sent, to say goodbye with
	// Conn.Append.
	Closing(c *Conn)
	// Closed says that the connection is closed.
	Closed(c *Conn)
}

// layer is the connection's layer, nil if it has none.
func (c *Conn) layer() Layer {
	if c.more == nil {
		return nil
	}
	return c.more.layer
}

// Layer is the connection's layer, nil if it has none.
func (c *Conn) Layer() Layer { return c.layer() }

// startLayer begins with a layer.
func (c *Conn) startLayer(l Layer) {
	c.state |= greeting
	c.host.Counters.Add(Greeting, 1)
	x := c.extra()
	x.layer, x.due = l, math.MaxInt64 // a due, so that it is looked at often
	if t := c.host.Limits.HandshakeTimeout; t > 0 {
		x.due = c.host.Now() + t
	}
	c.resumeLayer()
	c.endEvent()
}

// SetLayer puts another layer in the place of one that has done its part; nil is
// none.
func (c *Conn) SetLayer(l Layer) {
	c.more.layer = l
	c.forgetHeld()
}

// forgetHeld counts out what a layer has held.
func (c *Conn) forgetHeld() {
	if c.more != nil && c.more.layerBytes != 0 {
		c.host.Counters.Add(Buffered, -int64(c.more.layerBytes))
		c.more.layerBytes = 0
	}
}

// Greeted ends the greeting: from now on the handler is called.
func (c *Conn) Greeted() {
	if !c.is(greeting) || c.is(closing|failed) {
		return
	}
	c.state &^= greeting | allMissed
	c.host.Counters.Add(Greeting, -1)
	c.heard = c.host.coarseNow()
	if c.upgrades() {
		c.upgraded()
		return
	}
	c.state |= silent
	if c.more.due = 0; c.is(peerEnded) { // already: see PeerEnded
		c.more.due = c.host.Now() + c.host.Limits.CloseTimeout
	}
	c.begin()
}

// passUp gives the layer what has arrived.
func (c *Conn) passUp(p []byte) {
	c.failLayer(c.more.layer.Arrived(c, p))
	c.accountLayer()
}

// accountLayer counts what the layer holds, and notes since when it waits for the rest of
// something.
func (c *Conn) accountLayer() {
	l := c.layer()
	if l == nil {
		return
	}
	x, memory, partial := c.more, 0, false
	if !c.is(failed) {
		memory, partial = l.Held()
	}
	if memory != x.layerBytes {
		c.host.Counters.Add(Buffered, int64(memory-x.layerBytes))
		x.layerBytes = memory
	}
	switch {
	case !partial:
		x.partial = 0
	case x.partial == 0:
		x.partial = c.host.Clock()
	}
}

// partial is since when the layer, or the handler, waits for the rest of something; 0 if
// neither does.
func (c *Conn) partial() time.Duration {
	if c.more == nil {
		return 0
	}
	return earlier(c.more.partial, c.more.heldSince)
}

// passDown appends to the output, by way of the layer. What stands behind a file
// waits for it in front of the layer.
func (c *Conn) passDown(p []byte) {
	switch l := c.layer(); {
	case c.files() != nil:
		if len(p) > 0 && !c.is(failed) {
			push(c.host, c.room(len(p)), p)
		}
	case l != nil:
		c.failLayer(l.Write(c, p))
	default:
		c.Append(p)
	}
}

// Append appends to the output as it goes to the transport.
func (c *Conn) Append(p []byte) {
	if len(p) > 0 && !c.is(failed) {
		b := c.transport()
		if *b == nil {
			c.makeOutput(b, len(p))
		}
		push(c.host, *b, p)
	}
}

// resumeLayer has the layer go on with its handshake.
func (c *Conn) resumeLayer() {
	if l := c.layer(); l != nil && !c.is(closing|failed) {
		c.failLayer(l.Resume(c))
		c.accountLayer()
	}
}

// failLayer takes a layer's error.
func (c *Conn) failLayer(err error) {
	switch {
	case err == nil || c.is(closing|failed):
		return
	case c.upgrades() && !errors.Is(err, io.EOF):
		err = &TLSError{Err: err}
	}
	switch {
	case c.is(greeting) && c.Pending() == 0:
		c.fail(err)
	default:
		c.CloseWith(err)
	}
}
