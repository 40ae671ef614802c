// Package proxyproto parses the header of the PROXY protocol, versions 1 (text) and 2 (binary). With this header, a
// proxy tells a server the addresses of a forwarded connection:
// https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt
//
// The sender of the header chooses the address that the server trusts. Where a server expects proxies, it must
// therefore require the header, reject connections without it, and let only proxies connect.
package proxyproto

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
	"strconv"
	"strings"
)

const (
	// MaxSize is the maximum size of a header.
	MaxSize = 4096
	// maxLine is the maximum length of a version 1 header, including its line end.
	maxLine = 107
)

type Header struct {
	// Source is the client's address, and Destination the address to which the client has connected, without zones.
	// IPv4-mapped addresses (::ffff:192.0.2.1) are not converted. If Local or Unix is set, both addresses are invalid.
	Source, Destination netip.AddrPort
	// Local means that the header contains no addresses. Use the addresses of the transport connection instead.
	Local bool
	// Unix means that the client has connected through a unix socket.
	Unix bool
}

var errIncomplete = errors.New("incomplete")

// Parse parses the header at the start of b and returns the length of the header. If b contains only a part of the
// header, Parse returns the length 0 and no error. In this case, call Parse again when more bytes have arrived.
//
// In version 1, Parse ignores text after UNKNOWN. In version 2, Parse verifies a CRC32C and ignores all other TLVs
// (type, length, value).
func Parse(b []byte) (h Header, lengthIfComplete int, err error) {
	switch {
	case len(b) == 0:
		return Header{}, 0, nil
	case b[0] == signature[0]:
		h, lengthIfComplete, err = parseBinary(b)
	default:
		h, lengthIfComplete, err = parseTextOrIncomplete(b)
	}
	if err == errIncomplete {
		return Header{}, 0, nil
	}
	if err != nil {
		return Header{}, 0, err
	}
	return h, lengthIfComplete, nil
}

// checkPrefixOrIncomplete returns nil if b begins with prefix. If b is too short but equals the start of prefix, it
// returns errIncomplete. Otherwise, it returns an error with the text expected, which describes what was expected
// instead of b.
func checkPrefixOrIncomplete(b []byte, prefix, expected string) error {
	for i := range min(len(b), len(prefix)) {
		if b[i] != prefix[i] {
			return fmt.Errorf("byte %d is %q, after %q; expected %s", i+1, b[i:i+1], b[:i], expected)
		}
	}
	if len(b) < len(prefix) {
		return errIncomplete
	}
	return nil
}

const prefix = "PROXY "

func parseTextOrIncomplete(b []byte) (h Header, length int, err error) {
	if err := checkPrefixOrIncomplete(b, prefix, `"PROXY " or the signature of version 2`); err != nil {
		return h, 0, err
	}
	switch length = bytes.IndexByte(b[:min(len(b), maxLine)], '\n') + 1; {
	case length == 0 && len(b) < maxLine:
		return h, 0, errIncomplete
	case length == 0 || b[length-2] != '\r':
		return h, 0, fmt.Errorf(`header is %q; expected it to end with \r\n within %d bytes`, b[:min(len(b), max(length, maxLine))], maxLine)
	}
	line := string(b[len(prefix) : length-2])
	if line == "UNKNOWN" || strings.HasPrefix(line, "UNKNOWN ") {
		return Header{Local: true}, length, nil
	}
	f := strings.Split(line, " ")
	if f[0] != "TCP4" && f[0] != "TCP6" {
		return h, 0, fmt.Errorf("protocol is %q; expected TCP4, TCP6 or UNKNOWN", f[0])
	}
	if len(f) != 5 {
		return h, 0, fmt.Errorf("header is %q; expected two addresses and two ports after %s, each preceded by one space", b[:length], f[0])
	}
	if h.Source, err = parseAddrPort(f[0], f[1], f[3]); err != nil {
		return h, 0, err
	}
	h.Destination, err = parseAddrPort(f[0], f[2], f[4])
	return h, length, err
}

func parseAddrPort(family, addr, port string) (netip.AddrPort, error) {
	ip, err := netip.ParseAddr(addr)
	if err != nil || ip.Zone() != "" || ip.Is4() != (family == "TCP4") {
		return netip.AddrPort{}, fmt.Errorf("address is %q; expected an IPv%s address without a zone", addr, family[len("TCP"):])
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || len(port) > 1 && port[0] == '0' {
		return netip.AddrPort{}, fmt.Errorf("port is %q; expected 0 to 65535, without leading zeros", port)
	}
	return netip.AddrPortFrom(ip, uint16(n)), nil
}

const signature = "\r\n\r\n\x00\r\nQUIT\n"

const (
	headerSize = 16 // version 2: signature, version and command, family and protocol, length

	unspec, inet, inet6, unix, families = 0, 1, 2, 3, 4
	stream, dgram                       = 1, 2

	typeCRC32C    = 0x03
	tlvHeaderSize = 3 // type (1 byte) and length (2 bytes)
)

// addressSize[family] is the size in bytes of the two addresses and ports in a version 2 header.
var addressSize = [families]int{inet: 2*4 + 2*2, inet6: 2*16 + 2*2, unix: 2 * 108}

func parseBinary(b []byte) (h Header, length int, err error) {
	if err := checkPrefixOrIncomplete(b, signature, "the signature of version 2"); err != nil {
		return h, 0, err
	}
	if len(b) < headerSize {
		return h, 0, errIncomplete
	}
	command, family, protocol := b[12], int(b[13]>>4), b[13]&0xf
	length = headerSize + int(binary.BigEndian.Uint16(b[14:]))
	switch {
	case command != 0x20 && command != 0x21:
		return h, 0, fmt.Errorf("version and command are %#02x; expected 0x20 (version 2, LOCAL) or 0x21 (version 2, PROXY)", command)
	case length > MaxSize:
		return h, 0, fmt.Errorf("header of version 2 has %d bytes; expected at most %d: configure the proxy to omit large TLVs, such as certificates", length, MaxSize)
	case command == 0x20:
		family = unspec
	case family >= families || protocol > dgram || protocol == dgram:
		return h, 0, fmt.Errorf("family and protocol are %#02x; expected 0x11, 0x21 or 0x31 (streams over IPv4, IPv6 or unix sockets, not datagrams) or 0x00", b[13])
	case protocol != stream:
		family = unspec
	}
	if len(b) < length {
		return h, 0, errIncomplete
	}
	if family == unspec {
		return Header{Local: true}, length, nil
	}
	block, size := b[headerSize:length], addressSize[family]
	if len(block) < size {
		return h, 0, fmt.Errorf("length is %d; expected at least %d for the addresses of family %d", len(block), size, family)
	}
	if err := checkTLVsAndChecksum(b[:length], headerSize+size); err != nil {
		return h, 0, err
	}
	switch family {
	case unix:
		h.Unix = true
	default:
		half := (size - 4) / 2
		h.Source = toAddrPort(block[:half], block[2*half:])
		h.Destination = toAddrPort(block[half:2*half], block[2*half+2:])
	}
	return h, length, nil
}

func toAddrPort(ip, port []byte) netip.AddrPort {
	a, _ := netip.AddrFromSlice(ip) // cannot fail for 4 or 16 bytes
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(port))
}

func checkTLVsAndChecksum(header []byte, tlvOffset int) error {
	sum := 0 // offset of the checksum, 0 without a checksum
	for tlvOffset < len(header) {
		if len(header)-tlvOffset < tlvHeaderSize {
			return fmt.Errorf("length after the last TLV is %d; expected 0, or at least 3 for another TLV", len(header)-tlvOffset)
		}
		kind, size := header[tlvOffset], int(binary.BigEndian.Uint16(header[tlvOffset+1:]))
		tlvOffset += tlvHeaderSize
		switch {
		case size > len(header)-tlvOffset:
			return fmt.Errorf("TLV of type %#02x has %d bytes; expected at most %d, to the header's end", kind, size, len(header)-tlvOffset)
		case kind == typeCRC32C && size != crc32.Size:
			return fmt.Errorf("CRC32C has %d bytes; expected %d", size, crc32.Size)
		case kind == typeCRC32C && sum != 0:
			return errors.New("found two CRC32C TLVs; expected one")
		case kind == typeCRC32C:
			sum = tlvOffset
		}
		tlvOffset += size
	}
	if sum == 0 {
		return nil
	}
	if got, want := binary.BigEndian.Uint32(header[sum:]), computeChecksum(header, sum); got != want {
		return fmt.Errorf("CRC32C is %08x; expected %08x", got, want)
	}
	return nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// computeChecksum returns the CRC32C of header. The four bytes at checksumOffset count as zeros.
func computeChecksum(header []byte, checksumOffset int) uint32 {
	sum := crc32.Update(0, castagnoli, header[:checksumOffset])
	sum = crc32.Update(sum, castagnoli, make([]byte, crc32.Size))
	return crc32.Update(sum, castagnoli, header[checksumOffset+crc32.Size:])
}
