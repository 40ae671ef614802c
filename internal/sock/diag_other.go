//go:build !linux

package sock

import (
	"errors"
	"net/netip"
)

// Queues needs Linux.
func Queues(uint16) ([]Queue, error) { return nil, errors.ErrUnsupported }

// PortsTo needs Linux.
func PortsTo(netip.AddrPort, int) (map[netip.Addr]int64, error) { return nil, errors.ErrUnsupported }

// SegmentsOf needs Linux.
func SegmentsOf(uint16, int) (Segments, error) { return Segments{}, errors.ErrUnsupported }

// Accepted needs Linux.
func Accepted(uint16, int) (int, error) { return 0, errors.ErrUnsupported }

// Talks needs Linux.
func Talks(uint16, int) ([]Talk, error) { return nil, errors.ErrUnsupported }
