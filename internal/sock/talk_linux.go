package sock

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// diagInfo is INET_DIAG_INFO, the attribute that is a struct tcp_info.
const diagInfo = 2

// attributeKind are the bits of an attribute's type that are its kind (NLA_TYPE_MASK).
const attributeKind = 0x3fff

// Talks are the connected TCP sockets of a local port, of any address, in the network
// namespace of the calling thread, with what the kernel has counted of each. Those in
// TIME_WAIT, which nobody has open, are not among them. It looks at every TCP socket of
// the namespace, and locks each that it tells of for a moment. More than most are not
// told: then it fails.
func Talks(port uint16, most int) (talks []Talk, err error) {
	err = eachTalk(port, func(m []byte) error {
		if len(talks) == most {
			return fmt.Errorf("more than %d connections to port %d", most, port)
		}
		talks = append(talks, parseTalk(m))
		return nil
	})
	if err != nil {
		return nil, err
	}
	return talks, nil
}

// eachTalk calls read with the struct inet_diag_msg of each connected socket of a local
// port, with struct tcp_info behind it.
func eachTalk(port uint16, read func(m []byte) error) error {
	const without = 1<<tcpListen | 1<<tcpSynRecv | 1<<tcpTimeWait | 1<<tcpClose
	return diagBoth(diagQuery{states: ^uint32(0) &^ without, at: port, info: true}, read)
}

// Accepted counts the connections of a local port that are established and that somebody
// has accepted, whatever their address, in the network namespace of the calling thread. It
// goes through every TCP socket there, and is told nothing else of them. More than most are
// not counted: then it fails.
func Accepted(port uint16, most int) (n int, err error) {
	err = diagBoth(diagQuery{states: 1 << tcpEstablished, at: port}, func(m []byte) error {
		if binary.NativeEndian.Uint32(m[inodeAt:]) == 0 {
			return nil // it waits to be accepted
		}
		if n++; n > most {
			return fmt.Errorf("more than %d connections of port %d", most, port)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// parseTalk reads a connection's struct inet_diag_msg and, behind it, its attributes.
func parseTalk(m []byte) Talk {
	t := Talk{
		Local:  netip.AddrPortFrom(diagAddr(m[0], m[8:24]), binary.BigEndian.Uint16(m[4:])),
		Remote: netip.AddrPortFrom(diagAddr(m[0], m[24:40]), binary.BigEndian.Uint16(m[6:])),
		Cookie: binary.NativeEndian.Uint64(m[44:]),
		Unread: int64(binary.NativeEndian.Uint32(m[56:])),
		Unsent: int64(binary.NativeEndian.Uint32(m[60:])),
	}
	if info := attribute(m[diagMessage:], diagInfo); info != nil {
		var i unix.TCPInfo // an older kernel tells less of it
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&i)), unsafe.Sizeof(i)), info)
		t.In, t.Out = int64(i.Bytes_received), int64(i.Bytes_acked)
		t.Heard, t.RTT = time.Duration(i.Last_data_recv)*time.Millisecond, time.Duration(i.Rtt)*time.Microsecond
	}
	return t
}

// attribute finds an attribute by its kind, nil if it is not there.
func attribute(b []byte, kind uint16) []byte {
	for len(b) >= unix.NLA_HDRLEN {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.NLA_HDRLEN || size > len(b) {
			return nil
		}
		if binary.NativeEndian.Uint16(b[2:])&attributeKind == kind {
			return b[unix.NLA_HDRLEN:size]
		}
		b = b[min((size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1), len(b)):]
	}
	return nil
}
