package sock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// This file asks the kernel for TCP sockets by sock_diag(7), which unlike
// /proc/net/tcp can leave out those that are connected, and tells how long the queue
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

// maxQueues bounds the listeners that are told.
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
