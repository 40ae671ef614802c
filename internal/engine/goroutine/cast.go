package goroutine

import "github.com/myriad-go/myriad/internal/engine"

// This file is how a message goes to all connections. It is kept once, and waits in a
// queue for the caster, which leaves references to all that wait in the mailbox of each
// connection, a chunk of the table at a time. When connections are to end at once it casts no more.

// Broadcast implements engine.Engine. The queue has room for all that may be under way.
func (g *group) Broadcast(p []byte) error {
	b, err := g.broadcasts.StartBroadcast(p, 1, &g.cfg.Limits)
	if err != nil {
		return err
	}
	g.counters.Add(engine.Broadcasts, 1)
	g.casts <- b
	return nil
}

// castAll is the caster. It ends with the last broadcast.
func (g *group) castAll() {
	var batch []*engine.Broadcast
	for ended := g.stop.Done(); ended != nil || g.broadcasts.ActiveCount() > 0; {
		select {
		case b := <-g.casts:
			batch = append(batch[:0], b)
			for range len(g.casts) {
				batch = append(batch, <-g.casts)
			}
			g.cast(batch)
			for _, b := range batch {
				b.OwnerDone()
			}
			clear(batch)
		case <-ended:
			ended = nil
		}
	}
}

// cast leaves messages in all mailboxes. Connections that come meanwhile may get
// them or not.
func (g *group) cast(batch []*engine.Broadcast) {
	for conns := range g.chunks {
		for _, c := range conns {
			g.castTo(c, batch)
		}
		if isClosed(g.killed) {
			return
		}
	}
}

// castTo leaves messages in a mailbox. A connection that has no room for one loses
// it, or is closed.
func (g *group) castTo(c *conn, batch []*engine.Broadcast) {
	box, some := c.mailbox(), false
	for _, m := range batch {
		switch err := box.PutShared(&c.Conn, engine.RequestBroadcast, &m.Shared); {
		case err == nil:
			some = true
		case err != engine.ErrFull:
		case g.cfg.DropMessages:
			box.CountMissedBroadcast() // first: who sees the count finds it at the connection
			g.counters.Add(engine.Dropped, 1)
		default:
			c.request(slowConsumer)
			return
		}
	}
	if some {
		c.wake()
	}
}
