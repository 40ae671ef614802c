package hub

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	"github.com/myriad-go/myriad/tcp"
)

// fairLimit is a semaphore of size max that shares its capacity among owners: at most maxEach for one user, and
// twice as many for one address, because users may share a proxy. With keepSpare, an owner that holds as much as
// is free gets no more, so that a few owners cannot use up all capacity (Choudhury and Hahne, Dynamic Queue
// Length Thresholds, 1998). A release admits the waiter whose owners hold least, among equals the one that has
// waited longest. It is safe for concurrent use.
type fairLimit struct {
	max, maxEach int
	keepSpare    bool

	mu      sync.Mutex
	count   int
	held    map[owner]int
	waiting []*fairWaiter // none can be admitted now
}

type owner struct {
	user *user
	addr netip.Addr
}

type fairWaiter struct {
	owners   []owner
	admitted chan struct{}
}

// clientOwners returns the client's user and address as owners. The user is omitted in a hub without users, the
// address for a Unix socket.
func clientOwners(c *client, ref tcp.Ref) (owners []owner) {
	if c.user != nil && c.user != anyone {
		owners = append(owners, owner{user: c.user})
	}
	if addr, _ := ref.RemoteAddr(); addr.IsValid() {
		owners = append(owners, owner{addr: clientNetwork(addr.Addr())})
	}
	return owners
}

// tryAcquire acquires capacity for the owners without waiting and reports whether it succeeded.
func (l *fairLimit) tryAcquire(owners []owner) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tryAcquireLocked(owners)
}

// acquire waits for capacity until ctx ends. It returns the cause of ctx's end.
func (l *fairLimit) acquire(ctx context.Context, owners []owner) error {
	l.mu.Lock()
	if l.tryAcquireLocked(owners) {
		l.mu.Unlock()
		return nil
	}
	w := &fairWaiter{owners, make(chan struct{})}
	l.waiting = append(l.waiting, w)
	l.mu.Unlock()
	select {
	case <-w.admitted:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	i := slices.Index(l.waiting, w)
	if i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	l.mu.Unlock()
	if i < 0 { // it was admitted before it could be removed
		l.release(owners)
	}
	return context.Cause(ctx)
}

// tryAcquireLocked is tryAcquire with mu held.
func (l *fairLimit) tryAcquireLocked(owners []owner) bool {
	if !l.hasCapacity(owners) {
		return false
	}
	if l.held == nil {
		l.held = make(map[owner]int)
	}
	l.count++
	for _, o := range owners {
		l.held[o]++
	}
	return true
}

func (l *fairLimit) hasCapacity(owners []owner) bool {
	return l.count < l.max && !slices.ContainsFunc(owners, func(o owner) bool {
		limit := l.maxEach
		if o.user == nil {
			limit *= 2
		}
		if l.keepSpare {
			limit = min(limit, l.max-l.count)
		}
		return l.held[o] >= limit
	})
}

// release returns the owners' capacity and admits waiters.
func (l *fairLimit) release(owners []owner) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count--
	for _, o := range owners {
		if l.held[o]--; l.held[o] == 0 {
			delete(l.held, o)
		}
	}
	for i := l.nextWaiter(); i >= 0; i = l.nextWaiter() {
		w := l.waiting[i]
		l.tryAcquireLocked(w.owners)
		close(w.admitted)
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
}

// nextWaiter returns the index of the waiter to admit next, or -1.
func (l *fairLimit) nextWaiter() (next int) {
	next, fewest := -1, 0
	for i, w := range l.waiting {
		held := 0
		for _, o := range w.owners {
			held += l.held[o]
		}
		if (next < 0 || held < fewest) && l.hasCapacity(w.owners) {
			next, fewest = i, held
		}
	}
	return next
}

func (l *fairLimit) holderCount() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}
