//go:build !linux

package sock

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"
)

// ListenConfig makes a listener with the options of package net. Elsewhere
// than on Linux there are no loops to share a port.
func ListenConfig(reusePort bool, control Control) net.ListenConfig {
	return net.ListenConfig{Control: control}
}

func setUnsent(uintptr, int) error { return nil }

// ForAccepted does nothing here: it is a matter of Linux.
func (o Options) ForAccepted(net.Listener) error { return nil }

// Prepare leaves a listener as it is.
func Prepare(net.Listener) error { return nil }

// ListenShared listens once: where ports can't be shared like on Linux, n is 1.
func ListenShared(network, addr string, n int, control Control) ([]net.Listener, error) {
	lc := ListenConfig(false, control)
	l, err := lc.Listen(context.Background(), network, addr)
	if err != nil {
		return nil, err
	}
	return []net.Listener{l}, nil
}

// Backlog does nothing here: package net has chosen.
func Backlog(net.Listener, int) error { return nil }

// LatePort is for net.Dialer.Control; it is a matter of Linux.
func LatePort(_, _ string, _ syscall.RawConn) error { return nil }

// Queues needs Linux.
func Queues() ([]Queue, error) { return nil, errors.ErrUnsupported }

// SegmentsOf needs Linux.
func SegmentsOf(uint16, int) (Segments, error) { return Segments{}, errors.ErrUnsupported }

// Accepted needs Linux.
func Accepted(uint16, int) (int, error) { return 0, errors.ErrUnsupported }

// PrivateTables needs Linux.
func PrivateTables() error { return errors.ErrUnsupported }

// Talks needs Linux.
func Talks(uint16, int) ([]Talk, error) { return nil, errors.ErrUnsupported }

// DescriptorLimit is how many descriptors this process may open now (soft) and
// how far it may raise that by itself (hard). ok is false where there is no
// such limit to read.
func DescriptorLimit() (soft, hard uint64, ok bool) { return 0, 0, false }

// KeepaliveTimeout is after how long a silence a peer that answers no keepalive probe is
// given up.
const KeepaliveTimeout = 3 * time.Minute

// SetListenerTimeout does nothing here: the system has no such option.
func SetListenerTimeout(net.Listener, time.Duration, bool) {}

// Sleep pauses for d.
func Sleep(d time.Duration) { time.Sleep(d) }
