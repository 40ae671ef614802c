package sock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// ListeningPorts are the ports from low to high, in ascending order, on which TCP sockets
// of the network namespace of the calling thread listen: from these no connection
// starts, whatever its address. It looks at 16,384 listeners at most. Sockets that are
// bound and do nothing hold their ports too, but are not told: to find them the kernel
// goes through all connections.
func ListeningPorts(low, high uint16) ([]uint16, error) {
	listening := make(map[uint16]bool)
	left := maxQueues
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		err := diag(diagQuery{family: family, states: 1 << tcpListen}, func(m []byte) error {
			if left--; left < 0 {
				return errQueues
			}
			if port := binary.BigEndian.Uint16(m[4:]); port >= low && port <= high {
				listening[port] = true
			}
			return nil
		})
		if err != nil && !(family == unix.AF_INET6 && errors.Is(err, unix.ENOENT)) {
			return nil, fmt.Errorf("sock_diag: %w", err)
		}
	}
	var ports []uint16
	for port := range listening {
		ports = append(ports, port)
	}
	slices.Sort(ports)
	return ports, nil
}
