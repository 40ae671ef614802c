package sock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file queries TCP sockets with sock_diag(7). Unlike /proc/net/tcp, it can filter by state, and it reports the
// backlog of listeners. linux/inet_diag.h defines the layouts.

const (
	diagRequestSize    = 56 // sizeof(struct inet_diag_req_v2)
	diagMessageSize    = 72 // sizeof(struct inet_diag_msg)
	diagTimeoutSeconds = 2

	tcpEstablished = 1
	tcpTimeWait    = 6
	tcpClose       = 7
	tcpListen      = 10
	tcpSynRecv     = 12 // TCP_NEW_SYN_RECV: a connection request
)

const maxListeners = 16 << 10

var errTooManyListeners = errors.New("more than 16384 TCP listeners")

// ListAcceptQueues returns the accept queues of all TCP listeners in the calling thread's network namespace. It fails
// if there are more than 16,384 listeners.
func ListAcceptQueues() (found []AcceptQueue, err error) {
	err = dumpSockets(diagQuery{states: 1 << tcpListen}, func(m []byte) error {
		if len(found) == maxListeners {
			return errTooManyListeners
		}
		found = append(found, parseAcceptQueue(m))
		return nil
	})
	return found, err
}

type diagQuery struct {
	family      uint8
	states      uint32
	localPort   uint16 // 0 means any
	withTCPInfo bool   // ask for struct tcp_info as well
}

func parseAcceptQueue(msg []byte) AcceptQueue {
	return AcceptQueue{
		Addr:    netip.AddrPortFrom(parseDiagAddr(msg[0], msg[8:24]), binary.BigEndian.Uint16(msg[4:])),
		Waiting: int64(binary.NativeEndian.Uint32(msg[56:])),
		Max:     int64(binary.NativeEndian.Uint32(msg[60:])),
		Inode:   binary.NativeEndian.Uint32(msg[68:]),
	}
}

// parseDiagAddr decodes an address from the kernel. b has space for an IPv6 address, of which an IPv4 address occupies
// the first 4 bytes.
func parseDiagAddr(family uint8, b []byte) netip.Addr {
	if family == unix.AF_INET {
		return netip.AddrFrom4([4]byte(b))
	}
	return netip.AddrFrom16([16]byte(b)).Unmap()
}

func (q diagQuery) encodeRequest() []byte {
	filter := q.encodePortFilter()
	b := make([]byte, unix.NLMSG_HDRLEN+diagRequestSize, unix.NLMSG_HDRLEN+diagRequestSize+unix.NLA_HDRLEN+len(filter))
	binary.NativeEndian.PutUint16(b[4:], unix.SOCK_DIAG_BY_FAMILY)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	body := b[unix.NLMSG_HDRLEN:]
	body[0], body[1] = q.family, unix.IPPROTO_TCP
	if q.withTCPInfo {
		body[2] = 1 << (tcpInfoAttribute - 1)
	}
	binary.NativeEndian.PutUint32(body[4:], q.states)
	if len(filter) > 0 {
		const bytecode = 1 // INET_DIAG_REQ_BYTECODE
		b = binary.NativeEndian.AppendUint16(b, uint16(unix.NLA_HDRLEN+len(filter)))
		b = binary.NativeEndian.AppendUint16(b, bytecode)
		b = append(b, filter...)
	}
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	return b
}

// encodePortFilter returns a filter program for the kernel that accepts only sockets with the local port q.localPort.
// If q.localPort is 0, it returns nil, and all ports match.
func (q diagQuery) encodePortFilter() []byte {
	if q.localPort == 0 {
		return nil
	}
	const local, size = 7, 12 // INET_DIAG_BC_S_COND: an operation of 4 bytes and a condition of 8
	b := []byte{local, size}
	b = binary.NativeEndian.AppendUint16(b, size+4) // past the end: reject
	b = append(b, unix.AF_UNSPEC, 0, 0, 0)          // any host
	return binary.NativeEndian.AppendUint32(b, uint32(q.localPort))
}

// dumpSockets calls onSocketMessage for each TCP socket that matches q. It queries IPv4 and IPv6 sockets, whatever
// q.family is.
func dumpSockets(q diagQuery, onSocketMessage func(m []byte) error) error {
	for _, q.family = range []uint8{unix.AF_INET, unix.AF_INET6} {
		err := dumpFamilySockets(q, onSocketMessage)
		if err != nil && !(q.family == unix.AF_INET6 && errors.Is(err, unix.ENOENT)) {
			return fmt.Errorf("sock_diag: %w", err)
		}
	}
	return nil
}

// dumpFamilySockets is like dumpSockets, but queries only sockets of the address family q.family.
func dumpFamilySockets(q diagQuery, onSocketMessage func(m []byte) error) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: diagTimeoutSeconds}); err != nil {
		return err
	}
	if err := unix.Sendto(fd, q.encodeRequest(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 32<<10) // the maximum size of a dump message
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		more, err := parseDiagMessages(buf[:n], onSocketMessage)
		if err != nil || !more {
			return err
		}
	}
}

// parseDiagMessages calls onSocketMessage for each socket in buf. If buf contains the end of the kernel's answer,
// moreExpected is false.
func parseDiagMessages(buf []byte, onSocketMessage func(m []byte) error) (moreExpected bool, err error) {
	for len(buf) >= unix.NLMSG_HDRLEN {
		size := int(binary.NativeEndian.Uint32(buf))
		if size < unix.NLMSG_HDRLEN || size > len(buf) {
			return false, fmt.Errorf("netlink message has %d bytes; expected at most %d", size, len(buf))
		}
		body := buf[unix.NLMSG_HDRLEN:size]
		switch kind := binary.NativeEndian.Uint16(buf[4:]); {
		case kind == unix.NLMSG_ERROR && len(body) >= 4, kind == unix.NLMSG_DONE && len(body) >= 4:
			if code := int32(binary.NativeEndian.Uint32(body)); code < 0 {
				return false, os.NewSyscallError("netlink", unix.Errno(-code))
			}
			return false, nil
		case kind == unix.SOCK_DIAG_BY_FAMILY && len(body) >= diagMessageSize:
			if err := onSocketMessage(body); err != nil {
				return false, err
			}
		}
		buf = buf[min((size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1), len(buf)):]
	}
	return true, nil
}

// Offsets and sizes in the kernel's messages about sockets.
const (
	inodeOffset       = diagMessageSize - 4
	dataSegsInOffset  = int(unsafe.Offsetof(unix.TCPInfo{}.Data_segs_in))
	dataSegsOutOffset = int(unsafe.Offsetof(unix.TCPInfo{}.Data_segs_out))
	minTCPInfoSize    = max(dataSegsInOffset, dataSegsOutOffset) + 4
)

// connectedStates is a bit mask of the TCP states in which a socket is a connection.
const connectedStates = ^uint32(1<<tcpListen | 1<<tcpSynRecv | 1<<tcpTimeWait | 1<<tcpClose)

// dumpAcceptedConns calls onSocketMessage for each connection in the calling thread's network namespace that matches q.
// It skips connections that still wait to be accepted. It fails if there are more than failAbove connections.
func dumpAcceptedConns(q diagQuery, failAbove int, onSocketMessage func(m []byte) error) error {
	n := 0
	return dumpSockets(q, func(m []byte) error {
		if binary.NativeEndian.Uint32(m[inodeOffset:]) == 0 {
			return nil // not accepted yet
		}
		if n++; n > failAbove {
			return fmt.Errorf("more than %d connections on port %d", failAbove, q.localPort)
		}
		return onSocketMessage(m)
	})
}

// SumAcceptedConnSegments adds up the segments of all connections with the given local port in the calling thread's
// network namespace. It skips connections that still wait to be accepted. It fails if there are more than failAbove
// connections, and before Linux 4.6.
func SumAcceptedConnSegments(localPort uint16, failAbove int) (sum Segments, err error) {
	err = dumpAcceptedConns(diagQuery{states: connectedStates, localPort: localPort, withTCPInfo: true}, failAbove, func(m []byte) error {
		info := findNetlinkAttribute(m[diagMessageSize:], tcpInfoAttribute)
		if len(info) < minTCPInfoSize {
			return errors.New("the kernel does not count data segments; expected Linux 4.6 or later")
		}
		sum.Sockets++
		sum.In += int64(binary.NativeEndian.Uint32(info[dataSegsInOffset:]))
		sum.Out += int64(binary.NativeEndian.Uint32(info[dataSegsOutOffset:]))
		return nil
	})
	return sum, err
}

// ListAcceptedConns returns the connections with the given local port in the calling thread's network namespace. It
// skips connections that still wait to be accepted. It fails if there are more than failAbove connections.
func ListAcceptedConns(localPort uint16, failAbove int) (conns []ConnInfo, err error) {
	err = dumpAcceptedConns(diagQuery{states: connectedStates, localPort: localPort, withTCPInfo: true}, failAbove, func(m []byte) error {
		conns = append(conns, parseConnInfo(m))
		return nil
	})
	return conns, err
}

// CountAcceptedConns counts the connections with the given local port that are established and accepted, in the calling
// thread's network namespace. It fails if there are more than failAbove connections.
func CountAcceptedConns(localPort uint16, failAbove int) (n int, err error) {
	err = dumpAcceptedConns(diagQuery{states: 1 << tcpEstablished, localPort: localPort}, failAbove, func([]byte) error {
		n++
		return nil
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

const tcpInfoAttribute = 2

const attributeTypeMask = 0x3fff

func parseConnInfo(msg []byte) ConnInfo {
	t := ConnInfo{
		Local:  netip.AddrPortFrom(parseDiagAddr(msg[0], msg[8:24]), binary.BigEndian.Uint16(msg[4:])),
		Remote: netip.AddrPortFrom(parseDiagAddr(msg[0], msg[24:40]), binary.BigEndian.Uint16(msg[6:])),
		Cookie: binary.NativeEndian.Uint64(msg[44:]),
		Unread: int64(binary.NativeEndian.Uint32(msg[56:])),
		Unsent: int64(binary.NativeEndian.Uint32(msg[60:])),
	}
	if info := findNetlinkAttribute(msg[diagMessageSize:], tcpInfoAttribute); info != nil {
		var i unix.TCPInfo // older kernels send less
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&i)), unsafe.Sizeof(i)), info)
		t.BytesIn, t.BytesOut = int64(i.Bytes_received), int64(i.Bytes_acked)
		t.SinceInput, t.RTT = time.Duration(i.Last_data_recv)*time.Millisecond, time.Duration(i.Rtt)*time.Microsecond
	}
	return t
}

func findNetlinkAttribute(attrs []byte, kind uint16) []byte {
	for len(attrs) >= unix.NLA_HDRLEN {
		size := int(binary.NativeEndian.Uint16(attrs))
		if size < unix.NLA_HDRLEN || size > len(attrs) {
			return nil
		}
		if binary.NativeEndian.Uint16(attrs[2:])&attributeTypeMask == kind {
			return attrs[unix.NLA_HDRLEN:size]
		}
		attrs = attrs[min((size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1), len(attrs)):]
	}
	return nil
}
