package engine

import (
	"errors"
	"net"
	"slices"
)

// This file is how a connection is given up to package net.

// ErrShard says that a connection can't leave the descriptor table of its loop.
var ErrShard = errors.New("myriad: Detach of a connection whose loop has a descriptor table of its own; expected fewer Limits.MaxConns, or Server.Processes")

// Detach gives the connection up: its handler gets no more input, and when all output
// has been sent, take is called with the connection as one of package net, and with the
// input that the handler has not used; then Closed, with ErrDetached. If it ends before,
// take is not called.
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

// OnDetached says that the connection has become nc, or why it has not.
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
			_ = nc.Close() // the handler has panicked
		}
	}()
	c.callHandler(func(*Conn) {
		onDetached(nc, unread)
		taken = true
	})
}
