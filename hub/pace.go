package hub

import (
	"net/netip"
	"sync"
	"time"
)

// pace is how far somebody has used up what may be done, so many times in a span of time, and as many
// times at once after a quiet one: up to a moment that is at most a span ahead.
type pace time.Time

// take says whether it may be done now, and if so, that it is.
func (p *pace) take(now time.Time, rate int, span time.Duration) bool {
	each, used := span/time.Duration(rate), time.Time(*p)
	if used.Before(now) {
		used = now
	}
	if used.Sub(now) > span-each {
		return false
	}
	*p = pace(used.Add(each))
	return true
}

// maxPaces is the most addresses whose pace is known.
const maxPaces = 16_384

// paces are those of addresses. When there are too many, those go that have been quiet, and
// others until half is left.
type paces struct {
	mu sync.Mutex
	of map[netip.Addr]pace
}

func (ps *paces) take(from netip.Addr, now time.Time, rate int, span time.Duration) bool {
	from = sourceOf(from)
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.of == nil {
		ps.of = make(map[netip.Addr]pace)
	}
	p, known := ps.of[from]
	if !known && len(ps.of) >= maxPaces {
		ps.drop(now)
	}
	ok := p.take(now, rate, span)
	ps.of[from] = p
	return ok
}

// sourceOf returns the address that from counts as: of an IPv6 address its network of 64 bits.
func sourceOf(from netip.Addr) netip.Addr {
	if from = from.Unmap(); !from.Is6() {
		return from
	}
	network, _ := from.WithZone("").Prefix(64) // of an IPv6 address, which can't fail
	return network.Addr()
}

// drop makes room.
func (ps *paces) drop(now time.Time) {
	for from, p := range ps.of {
		if !time.Time(p).After(now) {
			delete(ps.of, from)
		}
	}
	for from := range ps.of {
		if len(ps.of) <= maxPaces/2 {
			return
		}
		delete(ps.of, from)
	}
}
