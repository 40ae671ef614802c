package engine

import (
	"context"
	"sync"
	"time"
)

// This file is how goroutines wait until a connection has room for what they send.
//
// The bytes that are posted and not sent are in the connection's mark, and so is a bit
// that says that somebody waits. It is set in one step with a look at how many bytes there
// are; whoever releases some sees it in the result and wakes all who wait once no more than
// LowWater are left, and so does the owner when the connection begins to close. So none waits for
// what has happened already, and nobody pays for those who do not wait.
//
// What they wait on is a channel of the connection, in a map of its host. A sender takes
// the channel first, under the lock, and sets the bit then; who wakes has the lock while he
// takes the bit back and closes the channel. At worst one is woken for nothing, and looks
// again.

// MaxSenders is how many may wait for one connection.
const MaxSenders = 256

// senders are those who wait, by connection.
type senders struct {
	mu sync.Mutex
	of map[*Conn]*waitList
}

type waitList struct {
	n    int           // how many wait, or are about to
	room chan struct{} // closed when there is room
}

// enter counts one more, unless there are too many.
func (s *senders) enter(c *Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = make(map[*Conn]*waitList)
	}
	w := s.of[c]
	if w == nil {
		w = &waitList{room: make(chan struct{})}
		s.of[c] = w
	}
	if w.n == MaxSenders {
		return false
	}
	w.n++
	return true
}

func (s *senders) leave(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[c].n--; s.of[c].n == 0 {
		delete(s.of, c)
	}
}

// room is what one waits on who has entered.
func (s *senders) room(c *Conn) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[c].room
}

// wake wakes all who wait for a connection.
func (s *senders) wake(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.mark.woken()
	if w := s.of[c]; w != nil {
		close(w.room)
		w.room = make(chan struct{})
	}
}

// paced is a request to send p unless too much is posted: more than HighWater with p, or
// more than LowWater before it if it is long.
func (r Ref) paced(p []byte) Request {
	l := &r.c.host.Limits
	return Request{Kind: MailSend, Bytes: p, limit: max(l.HighWater, min(l.LowWater+len(p), l.MaxUnsent), 1)}
}

// TrySend is SendWait that fails with ErrFull where it would wait.
func (r Ref) TrySend(p []byte) error {
	if r.Closed() {
		return ErrClosed
	}
	return r.post(r.paced(p))
}

// SendWait is Send that waits until there is room, or ctx ends, with its cause. It fails
// with ErrOnLoop on a loop, with ErrFull when MaxSenders wait already, and with
// ErrWriteTimeout when the connection's owner has had no room for mail for so long.
func (r Ref) SendWait(ctx context.Context, p []byte) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if r.Closed() {
		return ErrClosed
	}
	c, q := r.c, r.paced(p)
	if err := r.post(q); err != ErrFull {
		return err
	}
	if o := c.host.Loop; o != nil && o.OnLoop() {
		return ErrOnLoop
	}
	all := &c.host.senders
	if !all.enter(c) {
		return ErrFull
	}
	defer all.leave(c)
	var last Room // that it has waited for
	for giveUp := time.Duration(0); ; {
		room, mail := all.room(c), Room{}
		q.room = &mail
		err := r.post(q)
		last.done()
		if last = mail; err != ErrFull {
			return err
		}
		switch {
		case mail.freed != nil:
			if giveUp == 0 {
				giveUp = Since() + c.host.Limits.WriteTimeout
			}
			if err := r.awaitMail(ctx, mail, giveUp); err != nil {
				mail.done()
				return err
			}
			continue
		case !c.mark.await(r.gen, q.limit-max(len(p), noBytes)):
			continue
		}
		giveUp = 0
		select {
		case <-room:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// awaitMail waits until the connection's owner has room, until a time if there is a
// WriteTimeout.
func (r Ref) awaitMail(ctx context.Context, mail Room, giveUp time.Duration) error {
	var late <-chan time.Time
	if r.c.host.Limits.WriteTimeout > 0 {
		t := time.NewTimer(giveUp - Since())
		defer t.Stop()
		late = t.C
	}
	select {
	case <-mail.freed:
		return nil
	case <-late:
		return ErrWriteTimeout
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// unpost takes a reservation of mail back that has been sent or dropped.
func (c *Conn) unpost(n int) {
	if left, wanted := c.mark.release(n); wanted && left <= c.host.Limits.LowWater {
		c.host.senders.wake(c)
	}
}
