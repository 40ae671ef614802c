package engine

import (
	"context"
	"sync"
	"time"
)

// This file lets goroutines wait until a connection has space for their data.
//
// generationAndPosted counts the posted bytes and has a bit for waiting senders. A sender checks the count and sets the
// bit in one atomic step. When bytes are released and at most LowWater bytes are left, all senders are woken. They are
// also woken when the connection begins to close. So no wake-up is lost, and connections without waiting senders have
// no cost.
//
// All senders of a connection wait on one channel, which sendWaiters.byConn contains. Before a sender sets the bit, it
// gets the channel under the lock. A wake-up clears the bit and closes the channel under the lock. At worst, a sender
// wakes without space and checks again.

// MaxSenders is the maximum number of goroutines that may wait to send to one connection.
const MaxSenders = 256

type sendWaiters struct {
	mu     sync.Mutex
	byConn map[*Conn]*waiters
}

type waiters struct {
	count      int           // senders that wait or will wait
	spaceFreed chan struct{} // closed when there is space
}

// countSenderUnlessTooMany counts the caller as a goroutine that waits to send to c. It returns false if MaxSenders
// goroutines already wait.
func (s *sendWaiters) countSenderUnlessTooMany(c *Conn) (added bool) {
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

func (s *sendWaiters) uncountSender(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byConn[c].count--; s.byConn[c].count == 0 {
		delete(s.byConn, c)
	}
}

// spaceFreedChanOfWaitedConn returns a channel that is closed when c may have space for a message.
// countSenderUnlessTooMany must have counted the caller.
func (s *sendWaiters) spaceFreedChanOfWaitedConn(c *Conn) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byConn[c].spaceFreed
}

func (s *sendWaiters) signalSpaceFreed(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.refState.clearSenderWaiting()
	if w := s.byConn[c]; w != nil {
		close(w.spaceFreed)
		w.spaceFreed = make(chan struct{})
	}
}

func (r Ref) newWaitableSendRequest(p []byte) Request {
	l := &r.c.runtime.Limits
	return Request{Kind: RequestSend, Bytes: p, postedLimit: max(l.HighWater, min(l.LowWater+len(p), l.MaxUnsent), 1)}
}

// TrySend is like SendWait, but returns ErrFull instead of waiting for space.
func (r Ref) TrySend(p []byte) error {
	if r.IsClosed() {
		return ErrClosed
	}
	return r.post(r.newWaitableSendRequest(p))
}

// SendWait is like Send, but waits while too many bytes are queued for the connection. If ctx ends, SendWait returns
// the cause of ctx. If MaxSenders goroutines are already waiting, it returns ErrFull. If the owner's mailbox stays full
// for Limits.WriteTimeout, it returns ErrWriteTimeout. On a loop, SendWait must not wait, and returns ErrOnLoop
// instead.
func (r Ref) SendWait(ctx context.Context, p []byte) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if r.IsClosed() {
		return ErrClosed
	}
	c, q := r.c, r.newWaitableSendRequest(p)
	if err := r.post(q); err != ErrFull {
		return err
	}
	if o := c.runtime.Loop; o != nil && !o.LeaveToWait() {
		return ErrOnLoop
	}
	all := &c.runtime.sendWaiters
	if !all.countSenderUnlessTooMany(c) {
		return ErrFull
	}
	defer all.uncountSender(c)
	var lastWait SpaceWait // released after each attempt
	for deadline := time.Duration(0); ; {
		spaceFreed, mailboxWait := all.spaceFreedChanOfWaitedConn(c), SpaceWait{}
		q.spaceWait = &mailboxWait
		err := r.post(q)
		lastWait.stopWaiting()
		if lastWait = mailboxWait; err != ErrFull {
			return err
		}
		switch {
		case mailboxWait.freed != nil:
			if deadline == 0 {
				deadline = MonotonicNow() + c.runtime.Limits.WriteTimeout
			}
			if err := r.awaitMailboxSpace(ctx, mailboxWait, deadline); err != nil {
				mailboxWait.stopWaiting()
				return err
			}
			continue
		case !c.refState.markSenderWaitingIfAbove(r.generation, q.postedLimit-max(len(p), emptyRequestSize)):
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

// awaitMailboxSpace waits until the mailbox of the connection's owner may have space. If ctx ends first, it returns the
// cause of ctx. If Limits.WriteTimeout is set, it returns ErrWriteTimeout at monotonicDeadline, which is a time on the
// clock of MonotonicNow.
func (r Ref) awaitMailboxSpace(ctx context.Context, wait SpaceWait, monotonicDeadline time.Duration) error {
	var late <-chan time.Time
	if r.c.runtime.Limits.WriteTimeout > 0 {
		t := time.NewTimer(monotonicDeadline - MonotonicNow())
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

func (c *Conn) releasePostedAndWakeIfLow(byteCount int) {
	if left, wanted := c.refState.releasePostedBytes(byteCount); wanted && left <= c.runtime.Limits.LowWater {
		c.runtime.sendWaiters.signalSpaceFreed(c)
	}
}
