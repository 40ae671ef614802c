package engine

import (
	"errors"
	"net"
	"slices"
)

// ErrShard means that Detach is not possible, because the connection belongs to a loop with its own descriptor table.
var ErrShard = errors.New("myriad: Detach is not available on a loop with its own descriptor table; lower Limits.MaxConns or use Server.Processes")

// Detach removes the connection from the engine. The handler gets no more input. When all output has been sent, the
// engine calls onDetached with the connection as a net.Conn and with the input that the handler has not used. It then
// calls the handler's Closed with ErrDetached. If the connection ends before all output has been sent, onDetached is
// not called.
func (c *Conn) Detach(onDetached func(nc net.Conn, unread []byte)) error {
	switch {
	case !c.is(open) || c.is(closing|failed|closingWrite|shut):
		return ErrClosed
	case c.is(handshaking) || c.layer() != nil || c.isInputTaken():
		return ErrBadUse
	case c.runtime.NoDetach:
		return ErrShard
	}
	c.setReadingEnabled(false)
	c.ensureRare().onDetached = &onDetached
	return nil
}

func (c *Conn) isDetaching() bool { return c.extra != nil && c.extra.onDetached != nil }

// CompleteDetachOrAbort passes nc, the connection as a net.Conn, to onDetached. If err is not nil, it aborts c instead.
func (c *Conn) CompleteDetachOrAbort(nc net.Conn, err error) {
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
