package main

import (
	"net/netip"
	"strconv"
	"strings"
)

// maxSources bounds how many local addresses --src can name.
const maxSources = 65_536

const wantSource = wanted("an IP address of this machine, a range such as 10.0.0.1-10.0.0.20, or a network such as 10.0.0.0/24")

var wantFewer = wanted("at most " + strconv.Itoa(maxSources) + " addresses in all")

// parseSources reads an address, a range of addresses, or a network, of which
// it takes the addresses that hosts can have. It gives at most room addresses.
func parseSources(text string, room int) ([]netip.Addr, error) {
	first, last, ok := parseRange(text)
	if !ok {
		return nil, wantSource
	}
	var list []netip.Addr
	for addr := first; ; addr = addr.Next() {
		if len(list) == room {
			return nil, wantFewer
		}
		if list = append(list, addr); addr == last {
			return list, nil
		}
	}
}

// parseRange reads the first and the last address of what --src says.
func parseRange(text string) (first, last netip.Addr, ok bool) {
	if from, to, found := strings.Cut(text, "-"); found {
		first, err := netip.ParseAddr(from)
		last, otherErr := netip.ParseAddr(to)
		same := first.BitLen() == last.BitLen() && first.Zone() == last.Zone()
		return first, last, err == nil && otherErr == nil && same && first.Compare(last) <= 0
	}
	if strings.Contains(text, "/") {
		network, err := netip.ParsePrefix(text)
		first, last = hosts(network)
		return first, last, err == nil
	}
	first, err := netip.ParseAddr(text)
	return first, first, err == nil
}

// hosts are the first and the last address of a network that a host can have.
// An IPv4 network keeps its lowest and its highest address for itself, unless
// it has no other ones (RFC 3021).
func hosts(network netip.Prefix) (first, last netip.Addr) {
	if !network.IsValid() {
		return netip.Addr{}, netip.Addr{}
	}
	first = network.Masked().Addr()
	bytes := first.AsSlice()
	for bit := network.Bits(); bit < first.BitLen(); bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ = netip.AddrFromSlice(bytes)
	if first.Is4() && network.Bits() < 31 {
		first, last = first.Next(), last.Prev()
	}
	return first, last
}
