package hub

import (
	"net/netip"
	"sync"
	"time"
)

// rateLimit limits the number of events per window of time. The zero value is ready to use.
type rateLimit time.Time

func (p *rateLimit) allow(now time.Time, rate int, window time.Duration) (counted bool) {
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

const maxLimitedAddrs = 16_384

type addrRateLimits struct {
	mu     sync.Mutex
	byAddr map[netip.Addr]rateLimit
}

func (ps *addrRateLimits) allow(addr netip.Addr, now time.Time, rate int, window time.Duration) (counted bool) {
	addr = addrOrIPv6Network(addr)
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.byAddr == nil {
		ps.byAddr = make(map[netip.Addr]rateLimit)
	}
	p, known := ps.byAddr[addr]
	if !known && len(ps.byAddr) >= maxLimitedAddrs {
		ps.evictIdleThenShrinkToHalf(now)
	}
	ok := p.allow(now, rate, window)
	ps.byAddr[addr] = p
	return ok
}

// addrOrIPv6Network returns the address to which limits apply. For an IPv4 address, this is addr itself. For an IPv6
// address, this is its /64 network.
func addrOrIPv6Network(addr netip.Addr) netip.Addr {
	if addr = addr.Unmap(); !addr.Is6() {
		return addr
	}
	network, _ := addr.WithZone("").Prefix(64) // valid for IPv6: can't fail
	return network.Addr()
}

func (ps *addrRateLimits) evictIdleThenShrinkToHalf(now time.Time) {
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
