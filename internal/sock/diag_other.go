//go:build !linux

package sock

import "errors"

// Queues needs Linux.
func Queues() ([]Queue, error) { return nil, errors.ErrUnsupported }

// SegmentsOf needs Linux.
func SegmentsOf(uint16, int) (Segments, error) { return Segments{}, errors.ErrUnsupported }

// Accepted needs Linux.
func Accepted(uint16, int) (int, error) { return 0, errors.ErrUnsupported }

// Talks needs Linux.
func Talks(uint16, int) ([]Talk, error) { return nil, errors.ErrUnsupported }
