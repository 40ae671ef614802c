package doctor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// link is an interface, which is up or down.
type link string

func (l link) read() (string, error) {
	i, err := net.InterfaceByName(string(l))
	if err != nil {
		return "", fmt.Errorf("no such interface: %w", err)
	}
	if i.Flags&net.FlagUp == 0 {
		return "down", nil
	}
	return "up", nil
}

func (l link) write(value string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq(string(l))
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req); err != nil {
		return err
	}
	flags := req.Uint16() &^ unix.IFF_UP
	if value == "up" {
		flags |= unix.IFF_UP
	}
	req.SetUint16(flags)
	return explainNet(unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req))
}

// address is an address that an interface has, or has not.
type address struct {
	link   string
	prefix netip.Prefix
}

func addressPlace(c Change) (place, error) {
	text := c.To
	if text == "" {
		text = c.From
	}
	prefix, err := parsePrefix(text)
	return &address{c.Name, prefix}, err
}

func (a *address) read() (string, error) {
	i, err := net.InterfaceByName(a.link)
	if err != nil {
		return "", fmt.Errorf("no such interface: %w", err)
	}
	addrs, err := i.Addrs()
	if err != nil {
		return "", err
	}
	for _, has := range addrs {
		if has.String() == a.prefix.String() {
			return a.prefix.String(), nil
		}
	}
	return "", nil
}

func (a *address) write(value string) error {
	i, err := net.InterfaceByName(a.link)
	if err != nil {
		return err
	}
	kind, flags := uint16(unix.RTM_NEWADDR), uint16(unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	if value == "" {
		kind, flags = unix.RTM_DELADDR, 0
	}
	return explainNet(request(kind, flags, a.message(i.Index)))
}

// message is the address as rtnetlink(7) has it: an ifaddrmsg, and the address
// as the attributes IFA_LOCAL and IFA_ADDRESS.
func (a *address) message(index int) []byte {
	family, ip := byte(unix.AF_INET), a.prefix.Addr().AsSlice()
	if a.prefix.Addr().Is6() {
		family = unix.AF_INET6
	}
	m := []byte{family, byte(a.prefix.Bits()), 0, 0}
	m = binary.NativeEndian.AppendUint32(m, uint32(index))
	for _, attribute := range []uint16{unix.IFA_LOCAL, unix.IFA_ADDRESS} {
		m = binary.NativeEndian.AppendUint16(m, uint16(unix.SizeofRtAttr+len(ip)))
		m = binary.NativeEndian.AppendUint16(m, attribute)
		m = append(m, ip...) // 4 or 16 bytes: nothing to align
	}
	return m
}

// request sends one request by netlink(7) and waits for its answer, which the
// kernel gives before send returns.
func request(kind, flags uint16, payload []byte) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	m := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(payload)))
	m = binary.NativeEndian.AppendUint16(m, kind)
	m = binary.NativeEndian.AppendUint16(m, flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	m = binary.NativeEndian.AppendUint32(m, 1) // sequence
	m = binary.NativeEndian.AppendUint32(m, 0) // from: the kernel fills it in
	if err := unix.Sendto(fd, append(m, payload...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, unix.MSG_DONTWAIT)
	if err != nil {
		return err
	}
	const code = unix.SizeofNlMsghdr // the error stands behind the header
	if n < code+4 || binary.NativeEndian.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return errors.New("netlink gave no answer to a request")
	}
	if errno := -int32(binary.NativeEndian.Uint32(answer[code:])); errno != 0 {
		return unix.Errno(errno)
	}
	return nil
}

// explainNet says what an error means of an interface.
func explainNet(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("it takes root (CAP_NET_ADMIN): %w", err)
	}
	return err
}
