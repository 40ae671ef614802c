package engine

// This file is how a connection has a handler of its own, instead of its host's.

// ConnHandler is the handler of one connection, with its value. Its methods are called by
// the rules of those that the host has; what has nothing to do returns at once.
type ConnHandler interface {
	Handler
	// NewLayer, Drained, Draining and Timer are as in Config.
	NewLayer(c *Conn) Layer
	Drained(c *Conn)
	Draining(c *Conn)
	Timer(c *Conn)
	// NotifyDialFailed is called instead of Opened when the connection was not made. It may
	// be called on any goroutine, and does not block.
	DialFailed(err error)
	// Value and SetValue are the connection's value.
	Value() any
	SetValue(v any)
}

// SetConnHandler gives the connection a handler of its own, for the calls from now on. Its
// value goes with the handler.
func (c *Conn) SetConnHandler(h ConnHandler) {
	c.setUserData(h)
	c.state |= ownHandler
}

// ConnHandler is that handler, nil if there is none.
func (c *Conn) ConnHandler() ConnHandler {
	if !c.is(ownHandler) {
		return nil
	}
	return c.userData.(ConnHandler)
}

// ResetFailedDial forgets what a dial has been given that has failed, and gives the handler of
// its own, if it has one.
func (c *Conn) ResetFailedDial() ConnHandler {
	o := c.ConnHandler()
	c.state, c.extra, c.userData = 0, nil, nil
	return o
}

// Value is what SetValue was given.
func (c *Conn) Value() any {
	if o := c.ConnHandler(); o != nil {
		return o.Value()
	}
	return c.userData
}

// SetValue keeps v with the connection until Closed returns.
func (c *Conn) SetValue(v any) {
	if o := c.ConnHandler(); o != nil {
		g := c.refLock()
		g.Lock()
		defer g.Unlock()
		o.SetValue(v)
		return
	}
	c.setUserData(v)
}

func (c *Conn) setUserData(v any) {
	g := c.refLock()
	g.Lock()
	defer g.Unlock()
	c.userData = v
}

func (c *Conn) handler() Handler {
	if o := c.ConnHandler(); o != nil {
		return o
	}
	return c.runtime.Handler
}

// newFirstLayer makes the connection's first layer, nil if it has none.
func (c *Conn) newFirstLayer() Layer {
	if o := c.ConnHandler(); o != nil {
		return o.NewLayer(c)
	}
	if c.runtime.NewLayer == nil {
		return nil
	}
	return c.runtime.NewLayer(c)
}

func (c *Conn) callDrained() {
	if o := c.ConnHandler(); o != nil {
		c.callHandler(o.Drained)
	} else {
		c.callHandler(c.runtime.Drained)
	}
}

func (c *Conn) callDraining() {
	if o := c.ConnHandler(); o != nil {
		c.callHandler(o.Draining)
	} else {
		c.callHandler(c.runtime.Draining)
	}
}

func (c *Conn) callTimer() {
	if o := c.ConnHandler(); o != nil {
		c.callHandler(o.Timer)
	} else if c.runtime.Timer != nil {
		c.callHandler(c.runtime.Timer)
	}
	c.endEvent()
}
