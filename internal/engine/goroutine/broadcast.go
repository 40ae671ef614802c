package goroutine

import "github.com/myriad-go/myriad/internal/engine"

// This file is how a message goes to all connections. It is kept once, and waits in a
// queue for the caster, which leaves references to all that wait in the mailbox of each
// connection, a chunk of the table at a time. When connections are to end at once it casts no more.

// Broadcast implements engine.Engine. The queue has room for all that may be under way.
func (e *goroutineEngine) Broadcast(payload []byte) error {
	b, err := e.broadcastTracker.StartBroadcast(payload, 1, &e.cfg.Limits)
	if err != nil {
		return err
	}
	e.counters.Add(engine.Broadcasts, 1)
	e.broadcastQueue <- b
	return nil
}

// runBroadcaster is the caster. It ends with the last broadcast.
func (e *goroutineEngine) runBroadcaster() {
	var batch []*engine.Broadcast
	for ended := e.stopCtx.Done(); ended != nil || e.broadcastTracker.ActiveCount() > 0; {
		select {
		case b := <-e.broadcastQueue:
			batch = append(batch[:0], b)
			for range len(e.broadcastQueue) {
				batch = append(batch, <-e.broadcastQueue)
			}
			e.enqueueBroadcasts(batch)
			for _, b := range batch {
				b.OwnerDone()
			}
			clear(batch)
		case <-ended:
			ended = nil
		}
	}
}

// enqueueBroadcasts leaves messages in all mailboxes. Connections that come meanwhile may get
// them or not.
func (e *goroutineEngine) enqueueBroadcasts(batch []*engine.Broadcast) {
	for conns := range e.connChunks {
		for _, c := range conns {
			e.enqueueBroadcastsFor(c, batch)
		}
		if isClosed(e.killed) {
			return
		}
	}
}

// enqueueBroadcastsFor leaves messages in a mailbox. A connection that has no room for one loses
// it, or is closed.
func (e *goroutineEngine) enqueueBroadcastsFor(c *conn, batch []*engine.Broadcast) {
	box, enqueued := c.mailbox(), false
	for _, m := range batch {
		switch err := box.PutShared(&c.Conn, engine.RequestBroadcast, &m.Shared); {
		case err == nil:
			enqueued = true
		case err != engine.ErrFull:
		case e.cfg.DropMessages:
			box.CountMissedBroadcast() // first: who sees the count finds it at the connection
			e.counters.Add(engine.Dropped, 1)
		default:
			c.requestAndWake(requestSlowConsumer)
			return
		}
	}
	if enqueued {
		c.wake()
	}
}
