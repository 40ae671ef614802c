//go:build !linux

package sock

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"
)

// NewKeepaliveListenConfig returns a configuration that calls control and otherwise has the defaults of package net. It
// ignores reusePort.
func NewKeepaliveListenConfig(reusePort bool, control ControlFunc) net.ListenConfig {
	return net.ListenConfig{Control: control}
}

func setNotSentLowat(uintptr, int) error { return nil }

func (o Options) SetOnListener(net.Listener) error { return nil }

func SetNonblockNoDelayKeepalive(net.Listener) error { return nil }

// ListenReusePort opens one listener. socketCount must be 1, because sockets cannot share a port on this system.
func ListenReusePort(network, addr string, socketCount int, control ControlFunc) ([]net.Listener, error) {
	lc := NewKeepaliveListenConfig(false, control)
	l, err := lc.Listen(context.Background(), network, addr)
	if err != nil {
		return nil, err
	}
	return []net.Listener{l}, nil
}

func SetBacklog(net.Listener, int) error { return nil }

func SetBindAddressNoPort(_, _ string, _ syscall.RawConn) error { return nil }

func ListAcceptQueues() ([]AcceptQueue, error) { return nil, errors.ErrUnsupported }

func SumAcceptedConnSegments(uint16, int) (Segments, error) { return Segments{}, errors.ErrUnsupported }

func CountAcceptedConns(uint16, int) (int, error) { return 0, errors.ErrUnsupported }

// CheckPrivateTables fails, because private descriptor tables need Linux.
func CheckPrivateTables() error { return errors.ErrUnsupported }

func ListAcceptedConns(uint16, int) ([]ConnInfo, error) { return nil, errors.ErrUnsupported }

// DescriptorLimit always returns known = false, because the limit can be read on Linux only.
func DescriptorLimit() (soft, hard uint64, known bool) { return 0, 0, false }

// KeepaliveTimeout is the time after which the system ends a connection whose peer answers no keepalive probes.
const KeepaliveTimeout = 3 * time.Minute

func SetDeadPeerTimeout(net.Listener, time.Duration, bool) {}

func Sleep(d time.Duration) { time.Sleep(d) }
