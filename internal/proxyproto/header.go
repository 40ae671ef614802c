// Package proxyproto reads and writes the header of the PROXY protocol, with
// which a proxy tells the server behind it whose connection it passes on:
// https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt, versions 1 (text)
// and 2 (binary).
//
// Whoever sends the header chooses the address that is believed. So a server
// must demand it where it expects proxies, refuse connections without one there,
// and let nobody but proxies connect.
package proxyproto

import (
	"errors"
	"fmt"
	"net/netip"
)

const (
	// MaxSize is the most bytes that a header may have. The specification
	// sets no bound for version 2 below 65,551; what it defines needs far
	// less, but for certificates that somebody adds.
	MaxSize = 4096
	// maxLine is the most bytes of version 1, its end included.
	maxLine = 107
)

// Header is what a proxy tells of a connection.
type Header struct {
	// Source is the client's address and Destination the one that it has
	// connected to; without a zone. An IPv4 address that came in the form of
	// IPv6 (::ffff:192.0.2.1) stays so. Both are invalid with Local or Unix.
	Source, Destination netip.AddrPort
	// Local says that the header tells no addresses, so that those of the
	// transport hold: the proxy's own connection, such as a health check
	// (LOCAL), or one that it can't describe (UNKNOWN, UNSPEC).
	Local bool
	// Unix says that the client came over a unix socket. Its path is not
	// kept.
	Unix bool
}

// errMore says, within this package, that all is right so far.
var errMore = errors.New("more is needed")

// Parse reads the header that b begins with; n is its bytes. If b is a right
// beginning of one that is not complete, n is 0 and err is nil: call it again with
// more behind it. So it is with an empty b. A wrong byte is an error as soon as it
// is there, whatever may follow, so that nobody waits for the rest of garbage; a
// wrong checksum is known at the header's end. At MaxSize bytes there is always
// an answer.
//
// Version 1 is taken literally: one space, numbers without zeros or signs in
// front, addresses of the family that was announced, \r\n. An IPv6 address may
// end like an IPv4 one where inet_ntop writes it so: ::ffff:192.0.2.1. What comes
// after UNKNOWN is skipped.
//
// In version 2, what follows the addresses must be whole TLVs. They are skipped,
// but a CRC32C is checked. With LOCAL, UNSPEC or both nothing of the block is
// looked at: it can begin with addresses of a form that nobody knows. Datagrams
// are an error.
//
// Parse does not keep b, does not change it, and allocates for errors alone. It
// is safe for concurrent use.
func Parse(b []byte) (h Header, n int, err error) {
	if len(b) == 0 {
		return Header{}, 0, nil
	}
	switch b[0] {
	case hello[0]:
		h, n, err = parseLine(b)
	case signature[0]:
		h, n, err = parseBinary(b)
	default:
		err = wrong(b, 0, `"PROXY " or the signature of version 2`)
	}
	switch err {
	case nil:
		return h, n, nil
	case errMore:
		return Header{}, 0, nil
	}
	return Header{}, 0, err
}

// Append appends the header in version 1 or 2, and panics if it is another. It
// is for tests and load generators: addresses are not looked at twice. Without
// two valid ones the header is written as Local. If just one is IPv4, it is
// written in the form of IPv6; zones are not written. Version 1 can't say Unix
// and says UNKNOWN; version 2 gives no paths.
func Append(b []byte, h Header, version int) []byte {
	if !h.Source.IsValid() || !h.Destination.IsValid() {
		h.Local = h.Local || !h.Unix
	}
	switch version {
	case 1:
		return appendLine(b, h)
	case 2:
		return appendBinary(b, h)
	}
	panic(fmt.Sprintf("proxyproto: Append: version %d; expected 1 or 2", version))
}

// shown is how many bytes of a wrong header an error shows.
const shown = 64

// wrong is the error that b[i] is not what it should be.
func wrong(b []byte, i int, expected string) error {
	before := b[max(0, i+1-shown):i]
	dots := ""
	if len(before) < i {
		dots = "..."
	}
	return fmt.Errorf("byte %d is %q, after %s%q; expected %s", i+1, b[i:i+1], dots, before, expected)
}
