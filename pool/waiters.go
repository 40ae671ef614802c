package pool

import (
	"context"
	"sync"
	"sync/atomic"
)

// This file is how Submit waits for room.
//
// Who waits stands in a list, looks once more, and then sleeps. Who takes a task
// looks at their number afterwards: so one of the two sees the other. A taker
// wakes one, and no further one until that has run: it takes all the room that it
// finds, and wakes the next when there is more. So a worker that is busy with short
// jobs does not pay for each of those that wait, and nobody waits while there is
// room. One that is woken in vain, because somebody was quicker, stands in front
// again; after some times all that come stand behind it. Close wakes them all, and
// they are told.

// inVain is how often one may be woken in vain before others have to stand behind.
const inVain = 3

// waiter is a Submit that waits.
type waiter struct {
	woken      chan struct{} // has room for one
	prev, next *waiter
	listed     bool
	at         int64 // since when it waits
}

// waiters are all of them.
type waiters struct {
	n      atomic.Int32  // in the list
	came   atomic.Uint64 // all that there have been
	woken  atomic.Bool   // one is woken and has not run yet
	queued atomic.Int32  // those behind whom others have to stand

	mu          sync.Mutex
	first, last *waiter
	spare       sync.Pool
}

func (l *waiters) get() *waiter {
	if w, ok := l.spare.Get().(*waiter); ok {
		return w
	}
	return &waiter{woken: make(chan struct{}, 1)}
}

// add puts a waiter at the end of the list, or in front.
func (l *waiters) add(w *waiter, front bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.first == nil:
		l.first, l.last = w, w
	case front:
		w.next, l.first.prev = l.first, w
		l.first = w
	default:
		w.prev, l.last.next = l.last, w
		l.last = w
	}
	w.listed = true
	l.n.Add(1)
}

// unlink takes a waiter out of the list. The caller has the lock.
func (l *waiters) unlink(w *waiter) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		l.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		l.last = w.prev
	}
	w.prev, w.next, w.listed = nil, nil, false
	l.n.Add(-1)
}

// since is when the first one has begun to wait; 0 is none.
func (l *waiters) since() int64 {
	if l.n.Load() == 0 {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first == nil {
		return 0
	}
	return l.first.at
}

// leave takes a waiter out of the list that wants no more. One that has been woken
// meanwhile passes that on.
func (l *waiters) leave(w *waiter) {
	l.mu.Lock()
	listed := w.listed
	if listed {
		l.unlink(w)
	}
	l.mu.Unlock()
	if !listed {
		<-w.woken
		l.woken.Store(false)
		l.wake()
	}
	l.spare.Put(w)
}

// wake wakes the first, unless one is awake already, and says whether it did.
func (l *waiters) wake() (woke bool) {
	if l.n.Load() == 0 || l.woken.Load() || !l.woken.CompareAndSwap(false, true) {
		return false
	}
	l.mu.Lock()
	w := l.first
	if w != nil {
		l.unlink(w)
	}
	l.mu.Unlock()
	if w == nil {
		l.woken.Store(false)
		return l.wake() // somebody may have come before that
	}
	w.woken <- struct{}{}
	return true
}

// wakeAll wakes all, when the pool closes.
func (l *waiters) wakeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.first != nil {
		w := l.first
		l.unlink(w)
		w.woken <- struct{}{}
	}
}

// await submits a task that has found no room, when there is some.
func (p *Pool) await(ctx context.Context, t *Task) error {
	l := &p.waiters
	w := l.get()
	w.at = p.now()
	l.came.Add(1)
	vain := 0
	defer func() {
		if vain >= inVain {
			l.queued.Add(-1)
		}
		if p.roomy() {
			l.wake()
		}
	}()
	for ; ; vain++ {
		if vain == inVain {
			l.queued.Add(1)
		}
		l.add(w, vain > 0)
		if vain > 0 {
			l.woken.Store(false)
		}
		if vain > 0 || l.queued.Load() == 0 || p.closed.Load() {
			if err := p.offer(t); err != errNoRoom {
				l.leave(w)
				return err
			}
		}
		if ctx == nil {
			<-w.woken
			continue
		}
		select {
		case <-w.woken:
		case <-ctx.Done():
			l.leave(w)
			return &expired{context.Cause(ctx)}
		}
	}
}
