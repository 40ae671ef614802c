package proxyproto

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// appendHeader appends the header in version 1 or 2. Without two valid addresses it is
// written as Local. If just one is IPv4, it is written in the form of IPv6; zones are not
// written. Version 1 can't say Unix and says UNKNOWN; version 2 gives no paths.
func appendHeader(b []byte, h Header, version int) []byte {
	if !h.Source.IsValid() || !h.Destination.IsValid() {
		h.Local = h.Local || !h.Unix
	}
	if version == 1 {
		return appendText(b, h)
	}
	return appendBinary(b, h)
}

func appendText(b []byte, h Header) []byte {
	if h.Local || h.Unix {
		return append(b, "PROXY UNKNOWN\r\n"...)
	}
	from, to, family := h.Source.Addr(), h.Destination.Addr(), "TCP4"
	if !from.Is4() || !to.Is4() {
		from, to, family = as16(from), as16(to), "TCP6"
	}
	return fmt.Appendf(b, "%s%s %s %s %d %d\r\n", prefix, family, from, to, h.Source.Port(), h.Destination.Port())
}

// as16 is an address in the form of IPv6, without its zone.
func as16(a netip.Addr) netip.Addr { return netip.AddrFrom16(a.As16()) }

func appendBinary(b []byte, h Header) []byte {
	b = append(b, signature...)
	from, to := h.Source.Addr(), h.Destination.Addr()
	family := byte(inet)
	switch {
	case h.Local:
		return append(b, 0x20, unspec, 0, 0)
	case h.Unix:
		b = append(b, 0x21, unix<<4|stream, 0, byte(addressSize[unix]))
		return append(b, make([]byte, addressSize[unix])...)
	case !from.Is4() || !to.Is4():
		from, to, family = as16(from), as16(to), inet6
	}
	b = append(b, 0x21, family<<4|stream, 0, byte(addressSize[family]))
	b = append(append(b, from.AsSlice()...), to.AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, h.Source.Port())
	return binary.BigEndian.AppendUint16(b, h.Destination.Port())
}
