package admission

import (
	"fmt"
	"net/netip"
	"slices"
)

// Prefixes is a set of addresses, given as prefixes and made ready for questions:
// ranges that do not overlap, in order. It takes 48 bytes for each range and does not
// change, so it is safe for concurrent use. A prefix of IPv4 is about IPv4 addresses in
// the form of IPv6 too, and one of IPv6 (::/0) about none of them; those within
// ::ffff:0:0/96 are prefixes of IPv4.
type Prefixes struct{ ranges []addrRange }

// addrRange is a range of addresses of one family, its ends included.
type addrRange struct{ first, last netip.Addr }

// NewPrefixes makes a set of all addresses that are in one of the prefixes. It
// panics if one is not valid; the caller has checked what came from outside.
func NewPrefixes(list []netip.Prefix) *Prefixes {
	p := newPrefixes("NewPrefixes: list", list)
	return &p
}

func newPrefixes(name string, list []netip.Prefix) (p Prefixes) {
	for i, x := range list {
		if !x.IsValid() {
			panic(fmt.Sprintf("admission: %s[%d] is no valid prefix", name, i))
		}
		p.ranges = append(p.ranges, toAddrRange(x))
	}
	slices.SortFunc(p.ranges, func(a, b addrRange) int { return a.first.Compare(b.first) })
	merged := p.ranges[:0]
	for _, s := range p.ranges {
		if n := len(merged) - 1; n < 0 || merged[n].last.Less(s.first) {
			merged = append(merged, s)
		} else if merged[n].last.Less(s.last) {
			merged[n].last = s.last
		}
	}
	p.ranges = slices.Clip(merged)
	return p
}

// toAddrRange is the addresses of a prefix.
func toAddrRange(prefix netip.Prefix) addrRange {
	a, bits := prefix.Addr().WithZone(""), prefix.Bits()
	if a.Is4In6() && bits >= 96 { // what is larger is a prefix of IPv6, wherever it begins
		a, bits = a.Unmap(), bits-96
	}
	first := netip.PrefixFrom(a, bits).Masked().Addr()
	last := first.AsSlice()
	for bit := bits; bit < a.BitLen(); bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	end, _ := netip.AddrFromSlice(last) // of the length of an address
	return addrRange{first, end}
}

// Contains says whether an address is in the set; its zone does not matter. An
// invalid one, as a unix socket has, is in none. The time it takes grows with the
// logarithm of the number of ranges.
func (p *Prefixes) Contains(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	// the first range that does not end before a
	i, _ := slices.BinarySearchFunc(p.ranges, a, func(s addrRange, a netip.Addr) int { return s.last.Compare(a) })
	return i < len(p.ranges) && a.IsValid() && p.ranges[i].first.Compare(a) <= 0
}

func (p *Prefixes) isEmpty() bool { return len(p.ranges) == 0 }
