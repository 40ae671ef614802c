package admission

import (
	"fmt"
	"net/netip"
	"slices"
)

// Prefixes is an immutable set of IP addresses, given as prefixes. It is safe for concurrent use and takes about 48
// bytes per prefix.
//
// An IPv4 prefix also matches IPv4-mapped IPv6 addresses. A prefix within ::ffff:0:0/96 is treated as an IPv4 prefix.
// Wider IPv6 prefixes, such as ::/0, do not match IPv4 addresses.
type Prefixes struct{ ranges []addrRange }

// addrRange is an inclusive range of addresses of one family.
type addrRange struct{ first, last netip.Addr }

// NewPrefixes returns the set of all addresses in the given prefixes. It panics if a prefix is invalid.
func NewPrefixes(list []netip.Prefix) *Prefixes {
	p := mustSortAndMergePrefixes("NewPrefixes: list", list)
	return &p
}

func mustSortAndMergePrefixes(listName string, list []netip.Prefix) (p Prefixes) {
	for i, x := range list {
		if !x.IsValid() {
			panic(fmt.Sprintf("admission: %s[%d] is not a valid prefix", listName, i))
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

func toAddrRange(prefix netip.Prefix) addrRange {
	a, bits := prefix.Addr().WithZone(""), prefix.Bits()
	if a.Is4In6() && bits >= 96 { // a shorter prefix remains an IPv6 prefix
		a, bits = a.Unmap(), bits-96
	}
	first := netip.PrefixFrom(a, bits).Masked().Addr()
	last := first.AsSlice()
	for bit := bits; bit < a.BitLen(); bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	end, _ := netip.AddrFromSlice(last) // cannot fail for a slice of this length
	return addrRange{first, end}
}

// Contains reports whether a is in the set. It ignores the zone of a. An invalid address, such as that of a unix
// socket, is never in the set. The cost is logarithmic in the number of prefixes.
func (p *Prefixes) Contains(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	// the first range that does not end before a
	i, _ := slices.BinarySearchFunc(p.ranges, a, func(s addrRange, a netip.Addr) int { return s.last.Compare(a) })
	return i < len(p.ranges) && a.IsValid() && p.ranges[i].first.Compare(a) <= 0
}

func (p *Prefixes) isEmpty() bool { return len(p.ranges) == 0 }
