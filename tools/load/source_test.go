package load

import (
	"net/netip"
	"slices"
	"testing"
)

func TestPlanSources(t *testing.T) {
	one := func(text string, count int) source { return source{netip.MustParseAddr(text), count} }
	for name, test := range map[string]struct {
		target      string
		connections int
		given       []netip.Addr
		most        int
		want        []source
	}{
		"one is enough": {"127.0.0.1", 20_000, nil, 20_000, []source{{count: 20_000}}},
		"three": {"127.0.0.1", 50_000, nil, 20_000, []source{
			one("127.0.0.1", 16_667), one("127.0.0.2", 16_667), one("127.0.0.3", 16_666)}},
		"narrow range":  {"127.0.0.9", 5, nil, 3, []source{one("127.0.0.1", 3), one("127.0.0.2", 2)}},
		"no loopback":   {"192.0.2.1", 50_000, nil, 20_000, []source{{count: 50_000}}},
		"IPv6 loopback": {"::1", 50_000, nil, 20_000, []source{{count: 50_000}}},
		"no room known": {"127.0.0.1", 50_000, nil, 0, []source{{count: 50_000}}},
		"given": {"127.0.0.1", 50_000, addrs("127.0.0.7", "127.0.0.8"), 20_000, []source{
			one("127.0.0.7", 25_000), one("127.0.0.8", 25_000)}},
		"more than connections": {"192.0.2.1", 2, addrs("192.0.2.7", "192.0.2.8", "192.0.2.9"), 20_000, []source{
			one("192.0.2.7", 1), one("192.0.2.8", 1)}},
	} {
		if got := planSources(netip.MustParseAddr(test.target), test.connections, test.given, test.most); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}
