package engine

import (
	"errors"
	"net"
	"slices"
)

// ErrShard means that a connection can't leave the descriptor table of its loop.
var ErrShard = errors.New("myriad: Detach is not available on a loop with its own descriptor table; lower Limits.MaxConns or use Server.Processes")

// Detach gives the connection to the handler. No more input is passed to the handler. When all output has been sent,
// onDetached is called with the connection as a net.Conn and its unused input. Then Closed is called with ErrDetached.
// If the connection ends earlier, onDetached is not called.
func (c *Conn) Detach(onDetached func(nc net.Conn, unread []byte)) error {
	switch {
	case !c.is(open) || c.is(closing|failed|closingWrite|shut):
		return ErrClosed
	case c.is(handshaking) || c.layer() != nil || c.isInputTaken():
		return ErrBadUse
	case c.runtime.NoDetach:
		return ErrShard
	}
	c.setReading(false)
	c.ensureExtra().onDetached = &onDetached
	return nil
}

func (c *Conn) isDetaching() bool { return c.extra != nil && c.extra.onDetached != nil }

// OnDetached reports that the connection has become nc, or the error if that failed.
func (c *Conn) OnDetached(nc net.Conn, err error) {
	onDetached := *c.extra.onDetached
	c.extra.onDetached = nil
	if err != nil {
		c.OnTransportError(err)
		return
	}
	var unread []byte
	if c.in != nil {
		unread = slices.Clone(c.in.Bytes())
	}
	c.abortWith(ErrDetached)
	taken := false
	defer func() {
		if !taken {
			_ = nc.Close() // onDetached has panicked
		}
	}()
	c.callHandler(func(*Conn) {
		onDetached(nc, unread)
		taken = true
	})
}
