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
func (c *Conn) Detach(take func(nc net.Conn, unread []byte)) error {
	switch {
	case !c.is(open) || c.is(closing|failed|closingWrite|shut):
		return ErrClosed
	case c.is(greeting) || c.layer() != nil || c.inputTaken():
		return ErrBadUse
	case c.host.NoDetach:
		return ErrShard
	}
	c.listen(false)
	c.extra().detach = &take
	return nil
}

func (c *Conn) detaches() bool { return c.more != nil && c.more.detach != nil }

// Detached says that the connection has become nc, or why it has not.
func (c *Conn) Detached(nc net.Conn, err error) {
	take := *c.more.detach
	c.more.detach = nil
	if err != nil {
		c.Failed(err)
		return
	}
	var unread []byte
	if c.in != nil {
		unread = slices.Clone(c.in.Bytes())
	}
	c.fail(ErrDetached)
	taken := false
	defer func() {
		if !taken {
			_ = nc.Close() // the handler has panicked
		}
	}()
	c.call(func(*Conn) {
		take(nc, unread)
		taken = true
	})
}
