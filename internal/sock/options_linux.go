package sock

import (
	"fmt"
	"net"
	"strings"

	"golang.org/x/sys/unix"
)

func setUnsent(fd uintptr, bytes int) error {
	return unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, bytes)
}

// ForAccepted has the connections that a listener will accept inherit the options, but for Delay.
func (o Options) ForAccepted(l net.Listener) error {
	network := l.Addr().Network()
	err := withDescriptor(l, func(fd int) error {
		return o.set(uintptr(fd), strings.HasPrefix(network, "tcp"))
	})
	if err != nil {
		return fmt.Errorf("socket options %+v: %w", o, err)
	}
	return nil
}
