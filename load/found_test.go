package load

import (
	"net"
	"net/netip"
	"slices"
	"testing"
)

// TestBeside takes the addresses of the interface that are good for the target.
func TestBeside(t *testing.T) {
	prefixes := func(texts ...string) (list []net.Addr) {
		for _, text := range texts {
			ip, n, err := net.ParseCIDR(text)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, &net.IPNet{IP: ip, Mask: n.Mask})
		}
		return list
	}
	for name, test := range map[string]struct {
		own  string
		has  []net.Addr
		want []netip.Addr
	}{
		"three":                  {"10.0.0.2", prefixes("10.0.0.1/24", "10.0.0.2/24", "10.1.0.3/24"), addrs("10.0.0.2", "10.0.0.1", "10.1.0.3")},
		"another":                {"10.0.0.9", prefixes("10.0.0.1/24", "10.0.0.2/24"), nil},
		"the only one":           {"10.0.0.1", prefixes("10.0.0.1/24", "fd00::1/64"), nil},
		"of its family":          {"fd00::1", prefixes("10.0.0.1/24", "fd00::1/64", "fd00::2/64", "fe80::1/64"), addrs("fd00::1", "fd00::2")},
		"none, and not a prefix": {"10.0.0.1", []net.Addr{&net.UnixAddr{Name: "x"}}, nil},
	} {
		if got := beside(netip.MustParseAddr(test.own), test.has); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
	var many []net.Addr
	for i := range maxFound + 10 {
		many = append(many, &net.IPNet{IP: net.IPv4(10, byte(i>>16), byte(i>>8), byte(i)), Mask: net.CIDRMask(8, 32)})
	}
	if got := beside(netip.MustParseAddr("10.0.0.1"), many); len(got) != maxFound {
		t.Errorf("%d found, want %d", len(got), maxFound)
	}
}

// TestFindSources has one address on this machine at least, which leads to itself.
func TestFindSources(t *testing.T) {
	if got := routeTo(netip.MustParseAddrPort("127.0.0.1:9")); got != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("127.0.0.1 is reached from %v", got)
	}
	if got := findSources(netip.MustParseAddrPort("127.0.0.1:9")); slices.Contains(got, netip.Addr{}) {
		t.Errorf("found %v", got)
	}
}
