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

// Some commands take too long for an event loop, or query all loops or other hubs. Examples are lists of topics or
// clients, and PUBSUB NUMSUB in a cluster. Each of these commands gets its own goroutine, but only one of them runs at
// a time. Until a command has ended, its connection is paused and retained, so that a graceful shutdown waits for the
// reply.

const (
	// maxBackgroundReplies limits the background commands that run or wait.
	maxBackgroundReplies   = 16
	backgroundReplyTimeout = 10 * time.Second
)

type scanLimiter struct {
	running sync.Mutex
	queued  atomic.Int32
}

var errTooManyScans = errors.New("too many list requests; try again")

// replyInBackground calls makeReply on another goroutine to write the command's reply. If makeReply fails, the
// connection closes after the reply.
func (b *commandBatch) replyInBackground(makeReply func(ctx context.Context, r *replyWriter) error) {
	if b.flushReplies(); b.closing {
		return
	}
	r, muted := replyWriter{resp3: b.resp3}, b.noReply
	err := b.hub.pauseAndReplyInBackground(b.conn, func(ctx context.Context) ([]byte, error) {
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

// pauseAndReplyInBackground pauses c and calls makeReply on another goroutine. Then it sends the reply to c and resumes
// c. It returns an error if too many replies are being made.
func (h *Hub) pauseAndReplyInBackground(c *tcp.Conn, makeReply func(ctx context.Context) ([]byte, error)) error {
	if h.scans.queued.Add(1) > maxBackgroundReplies {
		h.scans.queued.Add(-1)
		return errTooManyScans
	}
	c.Retain()
	c.Pause()
	go h.makeReplyThenResume(c.Ref(), makeReply)
	return nil
}

func (h *Hub) makeReplyThenResume(ref tcp.Ref, makeReply func(ctx context.Context) ([]byte, error)) {
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
		_ = ref.Close() // closing succeeds even if the mailbox is full
	}
}

func noReplySpaceError(err error) error { return fmt.Errorf("hub: no space for a reply: %w", err) }
