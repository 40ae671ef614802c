package engine

// This file is how a connection has a handler of its own, instead of its host's.

// Owned is the handler of one connection, with its value. Its methods are called by
// the rules of those that the host has; what has nothing to do returns at once.
type Owned interface {
	Handler
	// NewLayer, Drained, Draining and Timer are as in Config.
	NewLayer(c *Conn) Layer
	Drained(c *Conn)
	Draining(c *Conn)
	Timer(c *Conn)
	// DialFailed is called instead of Opened when the connection was not made. It may
	// be called on any goroutine, and does not block.
	DialFailed(err error)
	// Value and SetValue are the connection's value.
	Value() any
	SetValue(v any)
}

// SetOwned gives the connection a handler of its own, for the calls from now on. Its
// value goes with the handler.
func (c *Conn) SetOwned(o Owned) {
	c.setUser(o)
	c.state |= ownHandler
}

// Owned is that handler, nil if there is none.
func (c *Conn) Owned() Owned {
	if !c.is(ownHandler) {
		return nil
	}
	return c.user.(Owned)
}

// Abandon forgets what a dial has been given that has failed, and gives the handler of
// its own, if it has one.
func (c *Conn) Abandon() Owned {
	o := c.Owned()
	c.state, c.more, c.user = 0, nil, nil
	return o
}

// Value is what SetValue was given.
func (c *Conn) Value() any {
	if o := c.Owned(); o != nil {
		return o.Value()
	}
	return c.user
}

// SetValue keeps v with the connection until Closed returns.
func (c *Conn) SetValue(v any) {
	if o := c.Owned(); o != nil {
		g := c.guard()
		g.Lock()
		defer g.Unlock()
		o.SetValue(v)
		return
	}
	c.setUser(v)
}

func (c *Conn) setUser(v any) {
	g := c.guard()
	g.Lock()
	defer g.Unlock()
	c.user = v
}

func (c *Conn) handler() Handler {
	if o := c.Owned(); o != nil {
		return o
	}
	return c.host.Handler
}

// newLayer makes the connection's first layer, nil if it has none.
func (c *Conn) newLayer() Layer {
	if o := c.Owned(); o != nil {
		return o.NewLayer(c)
	}
	if c.host.NewLayer == nil {
		return nil
	}
	return c.host.NewLayer(c)
}

func (c *Conn) callDrained() {
	if o := c.Owned(); o != nil {
		c.call(o.Drained)
	} else {
		c.call(c.host.Drained)
	}
}

func (c *Conn) callDraining() {
	if o := c.Owned(); o != nil {
		c.call(o.Draining)
	} else {
		c.call(c.host.Draining)
	}
}

func (c *Conn) callTimer() {
	if o := c.Owned(); o != nil {
		c.call(o.Timer)
	} else if c.host.Timer != nil {
		c.call(c.host.Timer)
	}
	c.endEvent()
}
