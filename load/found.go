package load

import (
	"net"
	"net/netip"
)

// maxFound bounds the source addresses that are found.
const maxFound = 1 << 16

// findSources are the addresses of this machine from which a target that isn't on
// it can be reached: those of the interface that the kernel would use, the one it
// would choose first. There are none where it can't be told, or is the only one.
func findSources(target netip.AddrPort) []netip.Addr {
	own := routeTo(target)
	if !own.IsValid() {
		return nil
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		if found := beside(own, addrs); len(found) > 0 {
			return found
		}
	}
	return nil
}

// routeTo is the local address that the kernel chooses for a target. Nothing is
// sent for that.
func routeTo(target netip.AddrPort) netip.Addr {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(target))
	if err != nil {
		return netip.Addr{}
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
}

// beside are the addresses of an interface that has own, if there is more than
// that one: those of its family that others can reach, own first.
func beside(own netip.Addr, addrs []net.Addr) []netip.Addr {
	found := []netip.Addr{own}
	here := false
	for _, a := range addrs {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue
		}
		addr := prefix.Addr().Unmap()
		if addr == own {
			here = true
			continue
		}
		if addr.Is4() == own.Is4() && addr.IsGlobalUnicast() && len(found) < maxFound {
			found = append(found, addr)
		}
	}
	if !here || len(found) == 1 {
		return nil
	}
	return found
}
