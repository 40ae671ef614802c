package hub

import (
	"net/netip"
	"sync"
	"time"
)

// rateLimit is how far somebody has used up what may be done, so many times in a span of time, and as many
// times at once after a quiet one: up to a moment that is at most a span ahead.
type rateLimit time.Time

// allow says whether it may be done now, and if so, that it is.
func (p *rateLimit) allow(now time.Time, rate int, window time.Duration) bool {
	each, usedUntil := window/time.Duration(rate), time.Time(*p)
	if usedUntil.Before(now) {
		usedUntil = now
	}
	if usedUntil.Sub(now) > window-each {
		return false
	}
	*p = rateLimit(usedUntil.Add(each))
	return true
}

// maxLimitedAddrs is the most addresses whose pace is known.
const maxLimitedAddrs = 16_384

// addrRateLimits are those of addresses. When there are too many, those go that have been quiet, and
// others until half is left.
type addrRateLimits struct {
	mu     sync.Mutex
	byAddr map[netip.Addr]rateLimit
}

func (ps *addrRateLimits) allow(addr netip.Addr, now time.Time, rate int, window time.Duration) bool {
	addr = clientNetwork(addr)
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.byAddr == nil {
		ps.byAddr = make(map[netip.Addr]rateLimit)
	}
	p, known := ps.byAddr[addr]
	if !known && len(ps.byAddr) >= maxLimitedAddrs {
		ps.evict(now)
	}
	ok := p.allow(now, rate, window)
	ps.byAddr[addr] = p
	return ok
}

// clientNetwork returns the address that from counts as: of an IPv6 address its network of 64 bits.
func clientNetwork(addr netip.Addr) netip.Addr {
	if addr = addr.Unmap(); !addr.Is6() {
		return addr
	}
	network, _ := addr.WithZone("").Prefix(64) // of an IPv6 address, which can't fail
	return network.Addr()
}

// evict makes room.
func (ps *addrRateLimits) evict(now time.Time) {
	for from, p := range ps.byAddr {
		if !time.Time(p).After(now) {
			delete(ps.byAddr, from)
		}
	}
	for from := range ps.byAddr {
		if len(ps.byAddr) <= maxLimitedAddrs/2 {
			return
		}
		delete(ps.byAddr, from)
	}
}
