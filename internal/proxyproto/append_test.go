package proxyproto

import (
	"encoding/binary"
	"fmt"
)

// appendHeader appends the header in version 1 or 2. Version 1 has no unix addresses and uses UNKNOWN;
// version 2 omits the paths.
func appendHeader(b []byte, h Header, version int) []byte {
	from, to := h.Source, h.Destination
	if version == 1 {
		switch {
		case h.Local || h.Unix:
			return append(b, "PROXY UNKNOWN\r\n"...)
		case from.Addr().Is4():
			b = append(b, "PROXY TCP4"...)
		default:
			b = append(b, "PROXY TCP6"...)
		}
		return fmt.Appendf(b, " %s %s %d %d\r\n", from.Addr(), to.Addr(), from.Port(), to.Port())
	}
	b = append(b, signature...)
	family := byte(inet6)
	switch {
	case h.Local:
		return append(b, 0x20, unspec, 0, 0)
	case h.Unix:
		b = append(b, 0x21, unix<<4|stream, 0, byte(addressSize[unix]))
		return append(b, make([]byte, addressSize[unix])...)
	case from.Addr().Is4():
		family = inet
	}
	b = append(b, 0x21, family<<4|stream, 0, byte(addressSize[family]))
	b = append(append(b, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, from.Port())
	return binary.BigEndian.AppendUint16(b, to.Port())
}
