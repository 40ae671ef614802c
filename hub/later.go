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

var errLater = errors.New("too many clients ask for lists; try again")

// later has a command answered by a goroutine, with r. An error closes the connection behind
// the answer.
func (t *turn) later(answer func(ctx context.Context, r *replies) error) {
	if t.flush(); t.gone {
		return
	}
	r, muted := replies{resp3: t.resp3}, t.muted
	err := t.h.later(t.c, func(ctx context.Context) ([]byte, error) {
		why := answer(ctx, &r)
		if muted {
			return nil, why
		}
		return r.out, why
	})
	if err != nil {
		t.error("BUSY " + err.Error())
		return
	}
	t.over = true
}

// later has a goroutine make an answer to a client, and send it. It fails if too many wait.
func (h *Hub) later(c *tcp.Conn, answer func(ctx context.Context) ([]byte, error)) error {
	if h.walks.n.Add(1) > maxLater {
		h.walks.n.Add(-1)
		return errLater
	}
	c.Retain()
	c.Pause()
	go h.answer(c.Ref(), answer)
	return nil
}

func (h *Hub) answer(to tcp.Ref, answer func(ctx context.Context) ([]byte, error)) {
	h.walks.turn.Lock()
	ctx, cancel := context.WithTimeout(context.Background(), laterTime)
	text, why := answer(ctx)
	cancel()
	h.walks.turn.Unlock()
	h.walks.n.Add(-1)
	if len(text) > 0 {
		if err := to.Send(text); err != nil {
			why = noRoom(err)
		}
	}
	err := to.Do(func(c *tcp.Conn) {
		if why != nil {
			c.CloseWith(why)
		}
		c.Resume()
		c.Release()
	})
	if errors.Is(err, tcp.ErrFull) {
		_ = to.Close() // for which there is more room
	}
}

func noRoom(err error) error { return fmt.Errorf("hub: no room for a reply: %w", err) }
