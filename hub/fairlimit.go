package hub

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	"github.com/myriad-go/myriad/tcp"
)

// fairSemaphore is a semaphore with max slots that users and addresses share fairly. It is safe for concurrent use.
//
// A user may hold at most maxEach slots. An address may hold at most 2 * maxEach slots. If keepSpare is true, the
// number of free slots is a further limit: a user or address may take a slot only while it holds fewer slots than are
// free (Choudhury and Hahne, Dynamic Queue Length Thresholds, 1998).
//
// If several waiters may take a free slot, it goes to the one whose user and address together hold the fewest slots.
type fairSemaphore struct {
	max, maxEach int
	keepSpare    bool

	mu      sync.Mutex
	count   int
	held    map[quotaOwner]int
	waiting []*fairWaiter // waiters that cannot be admitted now
}

type quotaOwner struct {
	user *user
	addr netip.Addr
}

type fairWaiter struct {
	owners   []quotaOwner
	admitted chan struct{}
}

// userAndAddrQuotaOwners returns the user and address that are charged for a slot of a fairSemaphore.
func userAndAddrQuotaOwners(c *client, ref tcp.Ref) (owners []quotaOwner) {
	if c.user != nil && c.user != unrestrictedUser {
		owners = append(owners, quotaOwner{user: c.user})
	}
	if addr, _ := ref.RemoteAddr(); addr.IsValid() {
		owners = append(owners, quotaOwner{addr: addrOrIPv6Network(addr.Addr())})
	}
	return owners
}

func (l *fairSemaphore) tryAcquire(owners []quotaOwner) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tryAcquireLocked(owners)
}

// acquire waits for a slot and charges it to all owners. If ctx ends first, it returns context.Cause(ctx).
func (l *fairSemaphore) acquire(ctx context.Context, owners []quotaOwner) error {
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
		l.releaseAndAdmitWaiters(owners)
	}
	return context.Cause(ctx)
}

func (l *fairSemaphore) tryAcquireLocked(owners []quotaOwner) bool {
	if !l.hasCapacityLocked(owners) {
		return false
	}
	if l.held == nil {
		l.held = make(map[quotaOwner]int)
	}
	l.count++
	for _, o := range owners {
		l.held[o]++
	}
	return true
}

func (l *fairSemaphore) hasCapacityLocked(owners []quotaOwner) bool {
	return l.count < l.max && !slices.ContainsFunc(owners, func(o quotaOwner) bool {
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

func (l *fairSemaphore) releaseAndAdmitWaiters(owners []quotaOwner) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count--
	for _, o := range owners {
		if l.held[o]--; l.held[o] == 0 {
			delete(l.held, o)
		}
	}
	for i := l.nextAdmissibleWaiterLocked(); i >= 0; i = l.nextAdmissibleWaiterLocked() {
		w := l.waiting[i]
		l.tryAcquireLocked(w.owners)
		close(w.admitted)
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
}

// nextAdmissibleWaiterLocked returns the index of the waiter to admit next, or -1 if none can be admitted.
func (l *fairSemaphore) nextAdmissibleWaiterLocked() (index int) {
	index, fewest := -1, 0
	for i, w := range l.waiting {
		held := 0
		for _, o := range w.owners {
			held += l.held[o]
		}
		if (index < 0 || held < fewest) && l.hasCapacityLocked(w.owners) {
			index, fewest = i, held
		}
	}
	return index
}

func (l *fairSemaphore) slotsInUse() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}
