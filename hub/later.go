package hub

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad"
)

// This file answers what takes too long for an event loop, or asks all of them: lists of
// topics and clients. Each such command has a goroutine, of which one works at a time. Until
// it has answered, its connection is not read from and, retained, not closed by a drain: which
// so waits for the goroutine. It ends within laterTime of its turn at the latest.

const (
	// maxLater is the most commands that wait for their turn, or have it.
	maxLater  = 16
	laterTime = 10 * time.Second
)

// walks are the commands that are answered later.
type walks struct {
	turn sync.Mutex
	n    atomic.Int32
}

// later has a command answered by a goroutine, with r. An error closes the connection behind
// the answer.
func (t *turn) later(answer func(ctx context.Context, r *replies) error) {
	if t.h.walks.n.Add(1) > maxLater {
		t.h.walks.n.Add(-1)
		t.error("BUSY too many clients ask for lists; try again")
		return
	}
	if t.flush(); t.gone {
		t.h.walks.n.Add(-1)
		return
	}
	t.over = true
	t.c.Retain()
	t.c.Pause()
	go t.h.answer(t.ref, replies{resp3: t.resp3}, t.muted, answer)
}

func (h *Hub) answer(to myriad.Ref, r replies, muted bool, answer func(ctx context.Context, r *replies) error) {
	h.walks.turn.Lock()
	ctx, cancel := context.WithTimeout(context.Background(), laterTime)
	why := answer(ctx, &r)
	cancel()
	h.walks.turn.Unlock()
	h.walks.n.Add(-1)
	if !muted {
		if err := to.Send(r.out); err != nil {
			why = noRoom(err)
		}
	}
	err := to.Do(func(c *myriad.Conn) {
		if why != nil {
			c.CloseWith(why)
		}
		c.Resume()
		c.Release()
	})
	if errors.Is(err, myriad.ErrFull) {
		_ = to.Close() // for which there is more room
	}
}

func noRoom(err error) error { return fmt.Errorf("hub: no room for a reply: %w", err) }
