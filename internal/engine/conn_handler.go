package engine

// ConnHandler is the handler of a single connection, and stores the connection's value. For this connection, it
// replaces the engine's Handler and the callbacks of Config that have the same names.
type ConnHandler interface {
	Handler
	// NewLayer, Drained, Missed, Draining and Timer are as in Config.
	NewLayer(c *Conn) Layer
	Drained(c *Conn)
	Missed(c *Conn, n int64)
	Draining(c *Conn)
	Timer(c *Conn)
	// DialFailed is called instead of Opened if connecting or the first layer's handshake fails. It may be called on
	// any goroutine and must not block.
	DialFailed(err error)
	// Value and SetValue access the connection's value.
	Value() any
	SetValue(v any)
}

// SetConnHandler makes h the connection's handler, beginning with the next handler call. From now on, h also stores the
// connection's value: Conn.Value and Conn.SetValue call the methods of h.
func (c *Conn) SetConnHandler(h ConnHandler) {
	c.lockAndSetUserData(h)
	c.state |= ownHandler
}

// ConnHandler returns the handler that was set by SetConnHandler, or nil.
func (c *Conn) ConnHandler() (ownOrNil ConnHandler) {
	if !c.is(ownHandler) {
		return nil
	}
	return c.userData.(ConnHandler)
}

// ResetFailedDial resets a connection whose dial has failed. It returns the ConnHandler that the connection had, or
// nil.
func (c *Conn) ResetFailedDial() ConnHandler {
	o := c.ConnHandler()
	c.state, c.extra, c.userData = 0, nil, nil
	return o
}

func (c *Conn) Value() any {
	if o := c.ConnHandler(); o != nil {
		return o.Value()
	}
	return c.userData
}

// SetValue stores v as the connection's value. The value is kept until the handler's Closed has returned.
func (c *Conn) SetValue(v any) {
	if o := c.ConnHandler(); o != nil {
		g := c.refLock()
		g.Lock()
		defer g.Unlock()
		o.SetValue(v)
		return
	}
	c.lockAndSetUserData(v)
}

func (c *Conn) lockAndSetUserData(v any) {
	g := c.refLock()
	g.Lock()
	defer g.Unlock()
	c.userData = v
}

func (c *Conn) ownOrEngineHandler() Handler {
	if o := c.ConnHandler(); o != nil {
		return o
	}
	return c.callbacks().Handler
}

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
		c.callHandler(c.callbacks().Drained)
	}
}

func (c *Conn) callPendingMissedAndDrained() {
	onlyMissed := false
	if x := c.extra; x != nil && x.droppedMessages > x.reportedMissed {
		n, missed := x.droppedMessages-x.reportedMissed, c.callbacks().Missed
		onlyMissed, x.onlyMissedPending, x.reportedMissed = x.onlyMissedPending, false, x.droppedMessages
		if o := c.ConnHandler(); o != nil {
			missed = o.Missed
		}
		if missed != nil {
			c.callHandler(func(c *Conn) { missed(c, n) })
		}
	}
	if !onlyMissed && !c.is(closing|failed) && (c.callbacks().Drained != nil || c.is(ownHandler)) {
		c.callDrained()
	}
}

func (c *Conn) callDraining() {
	if o := c.ConnHandler(); o != nil {
		c.callHandler(o.Draining)
	} else {
		c.callHandler(c.callbacks().Draining)
	}
}

func (c *Conn) callTimer() {
	if o := c.ConnHandler(); o != nil {
		c.callHandler(o.Timer)
	} else if timer := c.callbacks().Timer; timer != nil {
		c.callHandler(timer)
	}
	c.startPendingLayerAndUpdatePause()
}
