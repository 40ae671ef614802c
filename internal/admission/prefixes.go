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
type Prefixes struct{ spans []span }

// span is a range of addresses of one family, its ends included.
type span struct{ first, last netip.Addr }

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
		p.spans = append(p.spans, spanOf(x))
	}
	slices.SortFunc(p.spans, func(a, b span) int { return a.first.Compare(b.first) })
	merged := p.spans[:0]
	for _, s := range p.spans {
		if n := len(merged) - 1; n < 0 || merged[n].last.Less(s.first) {
			merged = append(merged, s)
		} else if merged[n].last.Less(s.last) {
			merged[n].last = s.last
		}
	}
	p.spans = slices.Clip(merged)
	return p
}

// spanOf is the addresses of a prefix.
func spanOf(x netip.Prefix) span {
	a, bits := x.Addr().WithZone(""), x.Bits()
	if a.Is4In6() && bits >= 96 { // what is larger is a prefix of IPv6, wherever it begins
		a, bits = a.Unmap(), bits-96
	}
	first := netip.PrefixFrom(a, bits).Masked().Addr()
	last := first.AsSlice()
	for bit := bits; bit < a.BitLen(); bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	end, _ := netip.AddrFromSlice(last) // of the length of an address
	return span{first, end}
}

// Contain says whether an address is in the set; its zone does not matter. An
// invalid one, as a unix socket has, is in none. The time it takes grows with the
// logarithm of the number of ranges.
func (p *Prefixes) Contain(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	// the first range that does not end before a
	i, _ := slices.BinarySearchFunc(p.spans, a, func(s span, a netip.Addr) int { return s.last.Compare(a) })
	return i < len(p.spans) && a.IsValid() && p.spans[i].first.Compare(a) <= 0
}

func (p *Prefixes) empty() bool { return len(p.spans) == 0 }
