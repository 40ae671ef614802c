package goroutine

import (
	"context"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file sends broadcasts to all connections. A broadcast is stored once and waits in a queue. A goroutine, the
// broadcaster, puts references to all waiting broadcasts into the mailbox of each connection. It stops early when the
// engine kills its connections.

func (e *goroutineEngine) BroadcastToAllConns(payload []byte) error {
	b, err := e.broadcastTracker.RegisterBroadcast(payload, 1, &e.cfg.Limits)
	if err != nil {
		return err
	}
	e.counters.Add(engine.Broadcasts, 1)
	e.broadcastQueue <- b
	return nil
}

// runBroadcaster puts queued broadcasts into the mailboxes of all connections. When the engine stops, runBroadcaster
// returns as soon as no broadcast is in progress.
func (e *goroutineEngine) runBroadcaster() {
	var batch []*engine.Broadcast
	enqueueWaiting := func() {
		for range len(e.broadcastQueue) {
			batch = append(batch, <-e.broadcastQueue)
		}
		e.enqueueBroadcastsForAllConns(batch)
		for _, b := range batch {
			b.MarkOneOwnerDone()
		}
		clear(batch)
		batch = batch[:0]
	}
	for ended := e.stopCtx.Done(); ended != nil || e.broadcastTracker.ActiveCount() > 0; {
		select {
		case b := <-e.broadcastQueue:
			batch = append(batch, b)
			enqueueWaiting()
		case enqueued := <-e.flushBroadcasts:
			enqueueWaiting()
			close(enqueued)
		case <-ended:
			ended = nil
		}
	}
}

// awaitEarlierBroadcasts waits until all earlier broadcasts are in the mailboxes of the connections. It returns early
// if ctx ends or the engine stops.
func (e *goroutineEngine) awaitEarlierBroadcasts(ctx context.Context) {
	enqueued := make(chan struct{})
	select {
	case e.flushBroadcasts <- enqueued:
	case <-ctx.Done():
		return
	case <-e.stopCtx.Done():
		return
	}
	<-enqueued // the broadcaster does not block
}

func (e *goroutineEngine) enqueueBroadcastsForAllConns(batch []*engine.Broadcast) {
	for conns := range e.connChunks {
		for _, c := range conns {
			e.enqueueBroadcastsOrDropOrCloseSlow(c, batch)
		}
		if isChanClosed(e.killed) {
			return
		}
	}
}

func (e *goroutineEngine) enqueueBroadcastsOrDropOrCloseSlow(c *conn, batch []*engine.Broadcast) {
	box, enqueued := c.getOrCreateMailbox(), false
	for _, m := range batch {
		switch err := box.PutShared(&c.Conn, engine.RequestBroadcast, &m.Shared); {
		case err == nil:
			enqueued = true
		case err != engine.ErrFull:
		case e.cfg.DropMessages:
			box.CountMissedBroadcast() // first, so that the counter never includes a message unknown to the connection
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
