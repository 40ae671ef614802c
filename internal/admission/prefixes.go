package admission

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
)

// Prefixes is a set of addresses, given as prefixes and made ready for questions:
// ranges that do not touch each other, in order, those of IPv4 and IPv6 apart. It
// takes 32 bytes for each range and does not change, so it is safe for concurrent
// use. A prefix of IPv4 is about IPv4 addresses in the form of IPv6 too, and one of
// IPv6 (::/0) about none of them; those within ::ffff:0:0/96 are prefixes of IPv4.
type Prefixes struct {
	four, six []span
}

// NewPrefixes makes a set of all addresses that are in one of the prefixes. It
// panics if one is not valid; the caller has checked what came from outside.
func NewPrefixes(list []netip.Prefix) *Prefixes {
	p := newPrefixes("NewPrefixes: list", list)
	return &p
}

// Contain says whether an address is in the set; its zone does not matter. An
// invalid one, as a unix socket has, is in none. The time it takes grows with the
// logarithm of the number of ranges.
func (p *Prefixes) Contain(a netip.Addr) bool { return a.IsValid() && p.contain(a) }

// span is a range of addresses, its ends included.
type span struct{ first, last number }

// number is an address as a number. IPv4 addresses are in the form of IPv6.
type number struct{ high, low uint64 }

func (n number) compare(m number) int {
	return cmp.Or(cmp.Compare(n.high, m.high), cmp.Compare(n.low, m.low))
}

// next is the number after n; after the last it is the first.
func (n number) next() number {
	n.low++
	if n.low == 0 {
		n.high++
	}
	return n
}

func numberOf(a netip.Addr) number {
	b := a.As16()
	return number{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

// inFour says whether an address is one of IPv4, in whatever form.
func inFour(a netip.Addr) bool { return a.Is4() || a.Is4In6() }

func newPrefixes(name string, list []netip.Prefix) (p Prefixes) {
	for i, x := range list {
		if !x.IsValid() {
			panic(fmt.Sprintf("admission: %s[%d] is no valid prefix", name, i))
		}
		bits, four := x.Bits(), inFour(x.Addr())
		if x.Addr().Is4() {
			bits += 96
		}
		// what is larger than all of IPv4 is a prefix of IPv6, wherever it begins
		if four && bits >= 96 {
			p.four = append(p.four, spanOf(numberOf(x.Addr()), bits))
		} else {
			p.six = append(p.six, spanOf(numberOf(x.Addr()), bits))
		}
	}
	p.four, p.six = merge(p.four), merge(p.six)
	return p
}

// spanOf is the addresses with the same first bits as n.
func spanOf(n number, bits int) span {
	high := ^uint64(0) >> min(bits, 64) // a shift by 64 gives 0
	low := ^uint64(0) >> max(bits-64, 0)
	return span{number{n.high &^ high, n.low &^ low}, number{n.high | high, n.low | low}}
}

// merge sorts ranges and makes one of those that overlap or touch.
func merge(s []span) []span {
	slices.SortFunc(s, func(a, b span) int { return a.first.compare(b.first) })
	var merged []span
	for _, x := range s {
		n := len(merged) - 1
		if n < 0 || !touch(merged[n], x) {
			merged = append(merged, x)
		} else if x.last.compare(merged[n].last) > 0 {
			merged[n].last = x.last
		}
	}
	return slices.Clip(merged)
}

// touch says whether nothing is between a and b, which does not begin earlier.
func touch(a, b span) bool {
	return b.first.compare(a.last) <= 0 || b.first == a.last.next()
}

func (p *Prefixes) empty() bool { return len(p.four) == 0 && len(p.six) == 0 }

func (p *Prefixes) contain(a netip.Addr) bool {
	in := p.six
	if inFour(a) {
		in = p.four
	}
	n := numberOf(a)
	// the range that begins last of those that begin at n or before
	i, j := 0, len(in)
	for i < j {
		middle := int(uint(i+j) / 2)
		if in[middle].first.compare(n) <= 0 {
			i = middle + 1
		} else {
			j = middle
		}
	}
	return i > 0 && n.compare(in[i-1].last) <= 0
}
