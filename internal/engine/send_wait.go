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

// sendWaiters are those who wait, by connection.
type sendWaiters struct {
	mu     sync.Mutex
	byConn map[*Conn]*waiters
}

type waiters struct {
	count      int           // how many wait, or are about to
	spaceFreed chan struct{} // closed when there is room
}

// add counts one more, unless there are too many.
func (s *sendWaiters) add(c *Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byConn == nil {
		s.byConn = make(map[*Conn]*waiters)
	}
	w := s.byConn[c]
	if w == nil {
		w = &waiters{spaceFreed: make(chan struct{})}
		s.byConn[c] = w
	}
	if w.count == MaxSenders {
		return false
	}
	w.count++
	return true
}

func (s *sendWaiters) remove(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byConn[c].count--; s.byConn[c].count == 0 {
		delete(s.byConn, c)
	}
}

// spaceChan is what one waits on who has entered.
func (s *sendWaiters) spaceChan(c *Conn) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byConn[c].spaceFreed
}

// wakeAll wakes all who wait for a connection.
func (s *sendWaiters) wakeAll(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.refState.clearSenderWaiting()
	if w := s.byConn[c]; w != nil {
		close(w.spaceFreed)
		w.spaceFreed = make(chan struct{})
	}
}

// newWaitingRequest is a request to send p unless too much is posted: more than HighWater with p, or
// more than LowWater before it if it is long.
func (r Ref) newWaitingRequest(p []byte) Request {
	l := &r.c.runtime.Limits
	return Request{Kind: RequestSend, Bytes: p, postedLimit: max(l.HighWater, min(l.LowWater+len(p), l.MaxUnsent), 1)}
}

// TrySend is SendWait that fails with ErrFull where it would wait.
func (r Ref) TrySend(p []byte) error {
	if r.IsClosed() {
		return ErrClosed
	}
	return r.post(r.newWaitingRequest(p))
}

// SendWait is Send that waits until there is room, or ctx ends, with its cause. It fails
// with ErrOnLoop on a loop, with ErrFull when MaxSenders wait already, and with
// ErrWriteTimeout when the connection's owner has had no room for mail for so long.
func (r Ref) SendWait(ctx context.Context, p []byte) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if r.IsClosed() {
		return ErrClosed
	}
	c, q := r.c, r.newWaitingRequest(p)
	if err := r.post(q); err != ErrFull {
		return err
	}
	if o := c.runtime.Loop; o != nil && o.OnLoop() {
		return ErrOnLoop
	}
	all := &c.runtime.sendWaiters
	if !all.add(c) {
		return ErrFull
	}
	defer all.remove(c)
	var lastWait SpaceWait // that it has waited for
	for deadline := time.Duration(0); ; {
		spaceFreed, mailboxWait := all.spaceChan(c), SpaceWait{}
		q.spaceWait = &mailboxWait
		err := r.post(q)
		lastWait.release()
		if lastWait = mailboxWait; err != ErrFull {
			return err
		}
		switch {
		case mailboxWait.freed != nil:
			if deadline == 0 {
				deadline = MonotonicNow() + c.runtime.Limits.WriteTimeout
			}
			if err := r.awaitMailboxSpace(ctx, mailboxWait, deadline); err != nil {
				mailboxWait.release()
				return err
			}
			continue
		case !c.refState.markSenderWaiting(r.generation, q.postedLimit-max(len(p), emptyRequestSize)):
			continue
		}
		deadline = 0
		select {
		case <-spaceFreed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// awaitMailboxSpace waits until the connection's owner has room, until a time if there is a
// WriteTimeout.
func (r Ref) awaitMailboxSpace(ctx context.Context, wait SpaceWait, deadline time.Duration) error {
	var late <-chan time.Time
	if r.c.runtime.Limits.WriteTimeout > 0 {
		t := time.NewTimer(deadline - MonotonicNow())
		defer t.Stop()
		late = t.C
	}
	select {
	case <-wait.freed:
		return nil
	case <-late:
		return ErrWriteTimeout
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// releasePosted takes a reservation of mail back that has been sent or dropped.
func (c *Conn) releasePosted(n int) {
	if left, wanted := c.refState.releasePosted(n); wanted && left <= c.runtime.Limits.LowWater {
		c.runtime.sendWaiters.wakeAll(c)
	}
}
