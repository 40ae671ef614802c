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

// This file asks the kernel for TCP sockets by sock_diag(7), which unlike
// /proc/net/tcp can leave out those that are connected, and has how long the queue
// of a listener may be. The layouts are those of linux/inet_diag.h.

const (
	diagRequest = 56 // sizeof(struct inet_diag_req_v2)
	diagMessage = 72 // sizeof(struct inet_diag_msg)
	// diagPatience bounds the wait for an answer.
	diagPatience = 2 // seconds

	tcpEstablished = 1
	tcpTimeWait    = 6
	tcpClose       = 7
	tcpListen      = 10
	tcpSynRecv     = 12 // of a request for a connection (TCP_NEW_SYN_RECV)
)

// maxQueues bounds the listeners that are returned.
const maxQueues = 16 << 10

// errQueues says that there are more.
var errQueues = errors.New("more than 16384 TCP listeners")

// Queues are the queues of the TCP sockets that listen in the network namespace of the
// calling thread. It takes time for each listener, not for connections.
func Queues() (found []Queue, err error) {
	err = diagBoth(diagQuery{states: 1 << tcpListen}, func(m []byte) error {
		if len(found) == maxQueues {
			return errQueues
		}
		found = append(found, parseQueue(m))
		return nil
	})
	return found, err
}

// diagQuery says which sockets are asked for.
type diagQuery struct {
	family uint8
	states uint32
	at     uint16 // of this local port, any if it is 0
	info   bool   // with struct tcp_info
}

// parseQueue reads a listener's struct inet_diag_msg.
func parseQueue(m []byte) Queue {
	return Queue{
		At:      netip.AddrPortFrom(diagAddr(m[0], m[8:24]), binary.BigEndian.Uint16(m[4:])),
		Waiting: int64(binary.NativeEndian.Uint32(m[56:])),
		Most:    int64(binary.NativeEndian.Uint32(m[60:])),
		Inode:   binary.NativeEndian.Uint32(m[68:]),
	}
}

// diagAddr reads an address: four words, of which IPv4 takes one.
func diagAddr(family uint8, b []byte) netip.Addr {
	if family == unix.AF_INET {
		return netip.AddrFrom4([4]byte(b))
	}
	return netip.AddrFrom16([16]byte(b)).Unmap()
}

// request is the query as the kernel reads it.
func (q diagQuery) request() []byte {
	filter := q.filter()
	b := make([]byte, unix.NLMSG_HDRLEN+diagRequest, unix.NLMSG_HDRLEN+diagRequest+unix.NLA_HDRLEN+len(filter))
	binary.NativeEndian.PutUint16(b[4:], unix.SOCK_DIAG_BY_FAMILY)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	body := b[unix.NLMSG_HDRLEN:]
	body[0], body[1] = q.family, unix.IPPROTO_TCP
	if q.info {
		body[2] = 1 << (diagInfo - 1)
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

// filter is the program by which the kernel leaves out sockets of other local ports: one
// condition, whose failure jumps beyond the end.
func (q diagQuery) filter() []byte {
	if q.at == 0 {
		return nil
	}
	const local, size = 7, 12 // INET_DIAG_BC_S_COND, an operation of 4 bytes with a condition of 8
	b := []byte{local, size}
	b = binary.NativeEndian.AppendUint16(b, size+4) // beyond the end: no
	b = append(b, unix.AF_UNSPEC, 0, 0, 0)          // of any host
	return binary.NativeEndian.AppendUint32(b, uint32(q.at))
}

// diagBoth is diag for IPv4, and for IPv6 where there is any.
func diagBoth(q diagQuery, each func(m []byte) error) error {
	for _, q.family = range []uint8{unix.AF_INET, unix.AF_INET6} {
		err := diag(q, each)
		if err != nil && !(q.family == unix.AF_INET6 && errors.Is(err, unix.ENOENT)) {
			return fmt.Errorf("sock_diag: %w", err)
		}
	}
	return nil
}

// diag asks, and calls each with the struct inet_diag_msg of every socket found.
func diag(q diagQuery, each func(m []byte) error) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: diagPatience}); err != nil {
		return err
	}
	if err := unix.Sendto(fd, q.request(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	in := make([]byte, 32<<10) // a dump's messages are of 32 KiB at most
	for {
		n, _, err := unix.Recvfrom(fd, in, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		more, err := diagMessages(in[:n], each)
		if err != nil || !more {
			return err
		}
	}
}

// diagMessages goes through what was received at once.
func diagMessages(in []byte, each func(m []byte) error) (more bool, err error) {
	for len(in) >= unix.NLMSG_HDRLEN {
		size := int(binary.NativeEndian.Uint32(in))
		if size < unix.NLMSG_HDRLEN || size > len(in) {
			return false, fmt.Errorf("a message of %d bytes where %d are left", size, len(in))
		}
		body := in[unix.NLMSG_HDRLEN:size]
		switch kind := binary.NativeEndian.Uint16(in[4:]); {
		case kind == unix.NLMSG_ERROR && len(body) >= 4, kind == unix.NLMSG_DONE && len(body) >= 4:
			if code := int32(binary.NativeEndian.Uint32(body)); code < 0 {
				return false, os.NewSyscallError("netlink", unix.Errno(-code))
			}
			return false, nil
		case kind == unix.SOCK_DIAG_BY_FAMILY && len(body) >= diagMessage:
			if err := each(body); err != nil {
				return false, err
			}
		}
		in = in[min((size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1), len(in)):]
	}
	return true, nil
}

// Of struct tcp_info the kernel has counted segments with data since Linux 4.6.
const (
	inodeAt    = diagMessage - 4
	dataIn     = int(unsafe.Offsetof(unix.TCPInfo{}.Data_segs_in))
	dataOut    = int(unsafe.Offsetof(unix.TCPInfo{}.Data_segs_out))
	dataBehind = max(dataIn, dataOut) + 4
)

// connected are the states of sockets that are connected, or were and are not closed yet.
const connected = ^uint32(1<<tcpListen | 1<<tcpSynRecv | 1<<tcpTimeWait | 1<<tcpClose)

// accepted calls read with the struct inet_diag_msg of each connection that the query finds
// and that somebody has accepted, and what was asked for behind it. It looks at every TCP
// socket in the network namespace of the calling thread, and fails for more than most.
func accepted(q diagQuery, most int, read func(m []byte) error) error {
	n := 0
	return diagBoth(q, func(m []byte) error {
		if binary.NativeEndian.Uint32(m[inodeAt:]) == 0 {
			return nil // it waits to be accepted
		}
		if n++; n > most {
			return fmt.Errorf("more than %d connections of port %d", most, q.at)
		}
		return read(m)
	})
}

// SegmentsOf adds up the segments of the connections that have a local port, whatever
// their address, in the network namespace of the calling thread. It fails for more
// connections than most.
func SegmentsOf(port uint16, most int) (all Segments, err error) {
	err = accepted(diagQuery{states: connected, at: port, info: true}, most, func(m []byte) error {
		info := attribute(m[diagMessage:], diagInfo)
		if len(info) < dataBehind {
			return errors.New("the kernel does not count segments with data")
		}
		all.Sockets++
		all.In += int64(binary.NativeEndian.Uint32(info[dataIn:]))
		all.Out += int64(binary.NativeEndian.Uint32(info[dataOut:]))
		return nil
	})
	return all, err
}

// Talks are the connections of a local port, of any address, in the network namespace of
// the calling thread, with what the kernel has counted of each; it locks each of them for a
// moment. It fails for more than most.
func Talks(port uint16, most int) (talks []Talk, err error) {
	err = accepted(diagQuery{states: connected, at: port, info: true}, most, func(m []byte) error {
		talks = append(talks, parseTalk(m))
		return nil
	})
	return talks, err
}

// Accepted counts the connections of a local port that are established and accepted,
// whatever their address, in the network namespace of the calling thread. It asks for
// nothing else of them. For more than most it fails, with 0.
func Accepted(port uint16, most int) (n int, err error) {
	err = accepted(diagQuery{states: 1 << tcpEstablished, at: port}, most, func([]byte) error {
		n++
		return nil
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// diagInfo is INET_DIAG_INFO, the attribute that is a struct tcp_info.
const diagInfo = 2

// attributeKind are the bits of an attribute's type that are its kind (NLA_TYPE_MASK).
const attributeKind = 0x3fff

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
		var i unix.TCPInfo // of which an older kernel sends less
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
