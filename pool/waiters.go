package pool

import (
	"context"
	"sync"
	"sync/atomic"
)

// Submits that wait for room stand in a list. A Submit adds itself, looks for room once
// more and then sleeps; a worker that takes a job looks at the list's length afterwards:
// so one of the two sees the other. The worker wakes the first waiter, and no further
// one until that has run: it takes the room that it finds and wakes the next if there is
// more. So a worker that is busy with short jobs does not pay for each waiter, and
// nobody waits while there is room. A waiter that finds no room, because somebody was
// quicker, goes to the front again; after the third time newcomers have to stand behind
// it. Close wakes all of them.

// maxVain is how often a waiter is woken in vain before newcomers stand behind it.
const maxVain = 3

// waiter is a Submit that waits.
type waiter struct {
	woken      chan struct{} // has room for one
	prev, next *waiter
	listed     bool
	since      int64
}

type waiters struct {
	n      atomic.Int32  // in the list
	total  atomic.Uint64 // all that there have been
	woken  atomic.Bool   // one is woken and has not run yet
	behind atomic.Int32  // waiters that newcomers have to stand behind

	listMu      sync.Mutex
	first, last *waiter
	free        sync.Pool
}

// insert puts a waiter at an end of the list.
func (l *waiters) insert(w *waiter, front bool) {
	l.listMu.Lock()
	defer l.listMu.Unlock()
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

// unlink takes a waiter out of the list, whose lock the caller holds.
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

// oldestWaiter is since when the first one waits, 0 for none.
func (l *waiters) oldestWaiter() int64 {
	if l.n.Load() == 0 {
		return 0
	}
	l.listMu.Lock()
	defer l.listMu.Unlock()
	if l.first == nil {
		return 0
	}
	return l.first.since
}

// leave takes a waiter out of the list that waits no more. One that was woken meanwhile
// passes that on.
func (l *waiters) leave(w *waiter) {
	l.listMu.Lock()
	listed := w.listed
	if listed {
		l.unlink(w)
	}
	l.listMu.Unlock()
	if !listed {
		<-w.woken
		l.woken.Store(false)
		l.wakeWaiter()
	}
	l.free.Put(w)
}

// wakeWaiter wakes the first waiter, unless one is awake already. It reports whether it
// did.
func (l *waiters) wakeWaiter() bool {
	for l.n.Load() > 0 && !l.woken.Load() && l.woken.CompareAndSwap(false, true) {
		l.listMu.Lock()
		w := l.first
		if w != nil {
			l.unlink(w)
		}
		l.listMu.Unlock()
		if w != nil {
			w.woken <- struct{}{}
			return true
		}
		l.woken.Store(false) // and look again: one may have come before that
	}
	return false
}

// wakeAll wakes all waiters, when the pool closes.
func (l *waiters) wakeAll() {
	l.listMu.Lock()
	defer l.listMu.Unlock()
	for l.first != nil {
		w := l.first
		l.unlink(w)
		w.woken <- struct{}{}
	}
}

// waitForRoom submits a job that has found no room as soon as there is some.
func (p *Pool) waitForRoom(t *Task) error {
	l := &p.waiters
	w, ok := l.free.Get().(*waiter)
	if !ok {
		w = &waiter{woken: make(chan struct{}, 1)}
	}
	w.since = p.now()
	l.total.Add(1)
	vain := 0
	defer func() {
		if vain >= maxVain {
			l.behind.Add(-1)
		}
		if p.hasRoom() {
			l.wakeWaiter()
		}
	}()
	var ended <-chan struct{}
	if t.Ctx != nil {
		ended = t.Ctx.Done()
	}
	for ; ; vain++ {
		if vain == maxVain {
			l.behind.Add(1)
		}
		l.insert(w, vain > 0)
		if vain > 0 {
			l.woken.Store(false)
		}
		if vain > 0 || l.behind.Load() == 0 || p.closed.Load() {
			if err := p.accept(t); err != errNoRoom {
				l.leave(w)
				return err
			}
		}
		select {
		case <-w.woken:
		case <-ended:
			l.leave(w)
			return &expired{context.Cause(t.Ctx)}
		}
	}
}
