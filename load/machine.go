package load

import (
	"context"
	"fmt"
	"net"
	"net/netip"
)

// resolve looks a host:port up and takes the first address, IPv4 before IPv6.
func resolve(ctx context.Context, target string) (netip.AddrPort, error) {
	host, service, err := net.SplitHostPort(target)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("load: target %q: %w", target, err)
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("load: port of target %q: %w", target, err)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("load: host of target %q: %w", target, err)
	}
	first := addrs[0].Unmap()
	for _, a := range addrs {
		if a = a.Unmap(); a.Is4() {
			first = a
			break
		}
	}
	return netip.AddrPortFrom(first, uint16(port)), nil
}
