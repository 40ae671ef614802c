package engine

import (
	"net/netip"
	"time"
)

// This file is how a handler gets to know how long connecting has taken. While a
// connection is dialled, and until Opened has returned, the time at which that began
// takes the room of two fields that mean nothing yet; where the connection greets,
// or a worker calls Opened, it is kept in extra.

// Dialling says that a connection to a peer, none for a unix socket, is being made
// since a time of Host.Now.
func (c *Conn) Dialling(peer netip.AddrPort, since time.Duration) {
	c.Expect(peer)
	c.note(since)
}

// DialledAt is when connecting began, by the clock of Since: just before the
// connect call, or in a model that leaves that to package net before its dial. It is
// for Opened of a connection that was dialled; otherwise it means nothing.
func (c *Conn) DialledAt() time.Duration {
	if c.is(opening) || c.more == nil {
		return c.noted()
	}
	return c.more.dialled
}

func (c *Conn) note(t time.Duration) {
	c.seen, c.heard = uint32(t), coarseTime(uint64(t)>>32)
}

func (c *Conn) noted() time.Duration { return time.Duration(uint64(c.heard)<<32 | uint64(c.seen)) }
