// Package sock is where socket calls are made: listening, dialling, options,
// and the calls of the hot path, which go to the kernel without telling the Go
// scheduler because they cannot block.
package sock

import (
	"net"
	"net/netip"
	"slices"
)

// IsLocal says whether an address is this machine's.
func IsLocal(addr netip.Addr) bool {
	if addr.IsLoopback() {
		return true
	}
	own, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(own, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && p.Addr().WithZone("") == addr
	})
}
