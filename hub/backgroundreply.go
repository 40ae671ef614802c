package hub

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// This file answers what takes too long for an event loop, or asks all of them, or the other
// hubs: lists of topics and clients, and presence in a cluster. Each such command has a goroutine, of which one works at a time. Until
// it has answered, its connection is not read from and, retained, not closed by a drain: which
// so waits for the goroutine. It ends within backgroundReplyTimeout of its turn at the latest.

const (
	// maxBackgroundReplies is the most commands that wait for their turn, or have it.
	maxBackgroundReplies   = 16
	backgroundReplyTimeout = 10 * time.Second
)

// scanLimiter are the commands that are answered later.
type scanLimiter struct {
	running sync.Mutex
	queued  atomic.Int32
}

var errTooManyScans = errors.New("too many clients ask for lists; try again")

// replyInBackground has a command answered by a goroutine, with r. An error closes the connection behind
// the answer.
func (b *commandBatch) replyInBackground(makeReply func(ctx context.Context, r *replyWriter) error) {
	if b.flushReplies(); b.closing {
		return
	}
	r, muted := replyWriter{resp3: b.resp3}, b.noReply
	err := b.hub.replyInBackground(b.conn, func(ctx context.Context) ([]byte, error) {
		closeReason := makeReply(ctx, &r)
		if muted {
			return nil, closeReason
		}
		return r.buf, closeReason
	})
	if err != nil {
		b.writeError("BUSY " + err.Error())
		return
	}
	b.stopped = true
}

// replyInBackground has a goroutine make an answer to a client, and send it. It fails if too many wait.
func (h *Hub) replyInBackground(c *tcp.Conn, makeReply func(ctx context.Context) ([]byte, error)) error {
	if h.scans.queued.Add(1) > maxBackgroundReplies {
		h.scans.queued.Add(-1)
		return errTooManyScans
	}
	c.Retain()
	c.Pause()
	go h.runBackgroundReply(c.Ref(), makeReply)
	return nil
}

func (h *Hub) runBackgroundReply(ref tcp.Ref, makeReply func(ctx context.Context) ([]byte, error)) {
	h.scans.running.Lock()
	ctx, cancel := context.WithTimeout(context.Background(), backgroundReplyTimeout)
	reply, closeReason := makeReply(ctx)
	cancel()
	h.scans.running.Unlock()
	h.scans.queued.Add(-1)
	if len(reply) > 0 {
		if err := ref.Send(reply); err != nil {
			closeReason = noReplySpaceError(err)
		}
	}
	err := ref.Do(func(c *tcp.Conn) {
		if closeReason != nil {
			c.CloseWith(closeReason)
		}
		c.Resume()
		c.Release()
	})
	if errors.Is(err, tcp.ErrFull) {
		_ = ref.Close() // for which there is more room
	}
}

func noReplySpaceError(err error) error { return fmt.Errorf("hub: no room for a reply: %w", err) }
