package proxyproto

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
)

// signature begins version 2.
const signature = "\r\n\r\n\x00\r\nQUIT\n"

// Where the parts of version 2 are.
const (
	commandAt = 12 // and the version
	familyAt  = 13 // and the protocol
	sizeAt    = 14 // two bytes
	blockAt   = 16
)

// The address families, and how many bytes their addresses take.
const (
	unspec, inet, inet6, unix = 0, 1, 2, 3

	stream, dgram = 1, 2

	inetSize  = 2*4 + 2*2
	inet6Size = 2*16 + 2*2
	unixSize  = 2 * 108
)

// The TLV that Parse looks at.
const (
	typeCRC32C = 0x03
	tlvHead    = 3 // a byte of type, two of length
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// parseBinary parses version 2.
func parseBinary(b []byte) (h Header, n int, err error) {
	l := line{b: b}
	if err = l.word(signature, "the signature of version 2"); err != nil {
		return h, 0, err
	}
	family, err := parseKind(b)
	if err != nil {
		return h, 0, err
	}
	n, err = parseSize(b, family)
	if err != nil {
		return h, 0, err
	}
	if family == unspec {
		h.Local = true
		if len(b) < n {
			return h, 0, errMore
		}
		return h, n, nil
	}
	if err = checkTLVs(b[:min(n, len(b))], blockAt+addressSize(family), n); err != nil {
		return h, 0, err
	}
	block := b[blockAt:n]
	switch family {
	case inet:
		h.Source = addrPort(block[0:4], block[8:10])
		h.Destination = addrPort(block[4:8], block[10:12])
	case inet6:
		h.Source = addrPort(block[0:16], block[32:34])
		h.Destination = addrPort(block[16:32], block[34:36])
	case unix:
		h.Unix = true
	}
	return h, n, nil
}

// parseKind parses version, command, family and protocol. The family is unspec
// if the addresses don't count.
func parseKind(b []byte) (family byte, err error) {
	if len(b) <= commandAt {
		return 0, errMore
	}
	command := b[commandAt]
	if command != 0x20 && command != 0x21 {
		return 0, wrong(b, commandAt, `"\x20" (version 2, LOCAL) or "\x21" (version 2, PROXY)`)
	}
	if len(b) <= familyAt {
		return 0, errMore
	}
	if command == 0x20 {
		return unspec, nil
	}
	family, protocol := b[familyAt]>>4, b[familyAt]&0xf
	switch {
	case protocol == dgram && family <= unix:
		return 0, wrong(b, familyAt, `"\x11", "\x21" or "\x31" (streams over IPv4, IPv6 or unix sockets) or "\x00", not datagrams`)
	case family > unix || protocol > dgram:
		return 0, wrong(b, familyAt, `"\x11", "\x21" or "\x31" (streams over IPv4, IPv6 or unix sockets) or "\x00"`)
	case protocol != stream:
		return unspec, nil
	}
	return family, nil
}

// addressSize is the bytes of a family's addresses.
func addressSize(family byte) int {
	switch family {
	case inet:
		return inetSize
	case inet6:
		return inet6Size
	case unix:
		return unixSize
	}
	return 0
}

// parseSize parses the length; n is that of the whole header.
func parseSize(b []byte, family byte) (n int, err error) {
	if len(b) <= sizeAt {
		return 0, errMore
	}
	least := int(b[sizeAt]) << 8
	if blockAt+least > MaxSize {
		return 0, tooLong(least, " or more")
	}
	if len(b) <= sizeAt+1 {
		return 0, errMore
	}
	size := least + int(b[sizeAt+1])
	switch free := size - addressSize(family); {
	case blockAt+size > MaxSize:
		return 0, tooLong(size, "")
	case free < 0:
		return 0, fmt.Errorf("length is %d; expected at least %d for the addresses of family %d", size, addressSize(family), family)
	case family != unspec && free > 0 && free < tlvHead:
		return 0, fmt.Errorf("length is %d; expected %d for the addresses of family %d, or room for a TLV", size, addressSize(family), family)
	}
	return blockAt + size, nil
}

// tooLong is the error of a header whose block has size bytes.
func tooLong(size int, orMore string) error {
	return fmt.Errorf("header of version 2 has %d bytes%s; expected at most %d: have the proxy leave out large TLVs, such as certificates",
		blockAt+size, orMore, MaxSize)
}

// checkTLVs looks whether the header of n bytes, of which b is what is there, is
// filled with TLVs from the one at i, and checks the checksum.
func checkTLVs(b []byte, i, n int) error {
	sum := 0 // where the checksum is
	for i < n {
		size, err := tlvSize(b, i, n)
		switch {
		case err != nil:
			return err
		case b[i] != typeCRC32C:
		case sum != 0:
			return errors.New("second CRC32C; expected one")
		case size != crc32.Size:
			return fmt.Errorf("CRC32C has %d bytes; expected 4", size)
		default:
			sum = i + tlvHead
		}
		i += tlvHead + size
	}
	if len(b) < n {
		return errMore
	}
	if sum == 0 {
		return nil
	}
	if got, want := binary.BigEndian.Uint32(b[sum:]), checksum(b, sum); got != want {
		return fmt.Errorf("CRC32C is %08x; expected %08x", got, want)
	}
	return nil
}

// tlvSize is the bytes of the value of the TLV at i.
func tlvSize(b []byte, i, n int) (size int, err error) {
	most := n - i - tlvHead
	if len(b) < i+2 {
		return 0, errMore
	}
	if size = int(b[i+1]) << 8; size > most {
		return 0, fmt.Errorf("TLV of type %#02x has %d bytes or more; expected at most %d, to the header's end", b[i], size, most)
	}
	if len(b) < i+tlvHead {
		return 0, errMore
	}
	size += int(b[i+2])
	switch left := most - size; {
	case left < 0:
		return 0, fmt.Errorf("TLV of type %#02x has %d bytes; expected at most %d, to the header's end", b[i], size, most)
	case left > 0 && left < tlvHead:
		return 0, fmt.Errorf("TLV of type %#02x has %d bytes, and %d are left; expected the header's end or another TLV", b[i], size, left)
	}
	return size, nil
}

var zeros [crc32.Size]byte

// checksum is that of the header b with zeros in the place of the checksum.
func checksum(b []byte, at int) uint32 {
	sum := crc32.Update(0, castagnoli, b[:at])
	sum = crc32.Update(sum, castagnoli, zeros[:])
	return crc32.Update(sum, castagnoli, b[at+crc32.Size:])
}

func addrPort(ip, port []byte) netip.AddrPort {
	a, _ := netip.AddrFromSlice(ip) // of 4 or 16 bytes
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(port))
}

func appendBinary(b []byte, h Header) []byte {
	b = append(b, signature...)
	from, to := h.Source.Addr(), h.Destination.Addr()
	switch {
	case h.Local:
		return append(b, 0x20, unspec, 0, 0)
	case h.Unix:
		b = append(b, 0x21, unix<<4|stream, 0, unixSize)
		return append(b, make([]byte, unixSize)...)
	case from.Is4() && to.Is4():
		b = append(b, 0x21, inet<<4|stream, 0, inetSize)
		b = append(b, from.AsSlice()...)
		b = append(b, to.AsSlice()...)
	default:
		b = append(b, 0x21, inet6<<4|stream, 0, inet6Size)
		b = append(b, sixteen(from).AsSlice()...)
		b = append(b, sixteen(to).AsSlice()...)
	}
	b = binary.BigEndian.AppendUint16(b, h.Source.Port())
	return binary.BigEndian.AppendUint16(b, h.Destination.Port())
}
