//go:build !linux

package sock

import (
	"net"
	"syscall"
)

// ListenConfig makes a listener with the options of package net. Elsewhere
// than on Linux there are no loops to share a port.
func ListenConfig(reusePort bool) net.ListenConfig { return net.ListenConfig{} }

func setUnsent(uintptr, int) error { return nil }

// ForAccepted does nothing here: it is a matter of Linux.
func (o Options) ForAccepted(net.Listener) error { return nil }

// Prepare leaves a listener as it is.
func Prepare(net.Listener) error { return nil }

// ListenShared listens once: where ports can't be shared like on Linux, n is 1.
func ListenShared(network, addr string, n int) ([]net.Listener, error) {
	l, err := net.Listen(network, addr)
	if err != nil {
		return nil, err
	}
	return []net.Listener{l}, nil
}

// Backlog does nothing here: package net has chosen.
func Backlog(net.Listener, int) error { return nil }

// LatePort is for net.Dialer.Control; it is a matter of Linux.
func LatePort(_, _ string, _ syscall.RawConn) error { return nil }
